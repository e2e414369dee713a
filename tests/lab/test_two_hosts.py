"""`write-bw` and `put` between two hosts with two planes: whose addresses count, what routes carry."""

import json
import os
import subprocess
import time

import pytest

from tests.helpers.commands import OPENMRC, one_line_error
from tests.helpers.labs import needs_root

SECRET = "0123456789abcdef0123456789abcdef"
PATIENCE = 60
PLANES = {host: f"10.91.0.{host},10.91.1.{host}" for host in (1, 2)}


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture(scope="module")
def hosts():
    """Two namespaces, joined by two links that carry 9000 bytes."""
    names = {host: f"openmrc-two-{os.getpid()}-{host}" for host in (1, 2)}
    try:
        for host, name in names.items():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            if host == 2:
                for plane in (0, 1):
                    ends = ["type", "veth", "peer", f"p{plane}", "netns", name]
                    ip("-n", names[1], "link", "add", f"p{plane}", "mtu", "9000", *ends)
        for host, name in names.items():
            for plane in (0, 1):
                ip("-n", name, "address", "add", f"10.91.{plane}.{host}/24", "dev", f"p{plane}")
                ip("-n", name, "link", "set", f"p{plane}", "mtu", "9000", "up")
        yield names
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False)


def start(hosts, host, *arguments, **environment):
    return subprocess.Popen(
        ["ip", "netns", "exec", hosts[host], *OPENMRC, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def outcome(hosts, host, *arguments, **environment):
    process = start(hosts, host, *arguments, **environment)
    out, errors = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)


def listening(hosts, port):
    """Returns once the server at host 2 listens."""
    deadline = time.monotonic() + PATIENCE
    command = ["ip", "netns", "exec", hosts[2], "ss", "-Hltn", f"sport = :{port}"]
    while not subprocess.run(command, capture_output=True, check=False).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_root
@pytest.mark.parametrize("name", ["without", "list", "token"])
def test_two_planes_need_a_list_or_a_token(hosts, tmp_path, name):
    flags = ["--allow-address", "10.91.0.0/16"] if name == "list" else []
    environment = {"OPENMRC_TOKEN": SECRET} if name == "token" else {}
    (tmp_path / "inbox").mkdir()
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    insecure = [] if name == "token" else ["--insecure"]
    server = start(
        hosts,
        2,
        *("serve", tmp_path / "inbox", "--bind", "10.91.0.2", "--addresses", PLANES[2], "--no-sync"),
        *(*insecure, *flags),
        **environment,
    )
    try:
        listening(hosts, 18516)
        put = ["put", tmp_path / "file", "10.91.0.2", "--addresses", PLANES[1], "--json", *flags]
        result = outcome(hosts, 1, *put, **environment)
    finally:
        server.kill()
        server.communicate()
    if name == "without":
        assert "offers the address 10.91.1.1, which is not the one it connects from" in one_line_error(result)
        assert list((tmp_path / "inbox").iterdir()) == []
        return
    assert result.returncode == 0, result.stderr
    assert all(plane["tx_packets"] > 0 for plane in json.loads(result.stdout)["planes"])


@needs_root
@pytest.mark.parametrize("narrow", [None, 1, 2])
def test_both_ends_use_what_both_routes_carry(hosts, narrow):
    if narrow is not None:
        other = 3 - narrow
        route = [f"10.91.1.{other}/32", "dev", "p1", "mtu", "lock", "2000"]
        ip("-n", hosts[narrow], "route", "add", *route)
    allow = ["--allow-address", "10.91.0.0/16"]
    server = start(hosts, 2, "write-bw", "--addresses", PLANES[2], *allow)
    try:
        listening(hosts, 18515)
        flags = ["--addresses", PLANES[1], *allow, "-n", 20, "-s", 65536, "--json"]
        result = outcome(hosts, 1, "write-bw", "10.91.0.2", *flags)
        server.wait(PATIENCE)
    finally:
        server.kill()
        server.communicate()
        if narrow is not None:
            ip("-n", hosts[narrow], "route", "delete", *route[:3])
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    # 4096 bytes of payload per packet, or 1792 where the MTU is 2000.
    packets = 16 if narrow is None else 37
    assert figures["data_packets"] - figures["retransmits"] == 20 * packets
