"""`write-bw`, `write-lat`, `put` and `serve` in SRv6 mode, between two hosts of a lab."""

import json
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from tests.helpers.commands import OPENMRC, one_line_error, run
from tests.helpers.labs import carried, counted, needs_root, running, specification

SETPRIV = shutil.which("setpriv")
SERVER, CLIENT = "h0", "h15"
PATIENCE = 60
TO_ALL = ["--bind", "::", "--insecure"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "commands") as lab:
        yield lab


@contextmanager
def at(lab, host, *arguments):
    """The command `openmrc` at a host, killed at the end of the block."""
    process = subprocess.Popen(
        lab.command(host, [*OPENMRC, *map(str, arguments)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def run_at(lab, host, *arguments, prefix=()):
    command = lab.command(host, [*prefix, *OPENMRC, *map(str, arguments)])
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def address(lab):
    return lab.addresses(SERVER)[0]


def until_listening(server):
    while "TCP port" not in server.stdout.readline():
        assert server.poll() is None, server.stderr.read()


def error_line(result):
    assert result.returncode in (1, 2)
    return one_line_error(result)


@needs_root
@pytest.mark.parametrize(
    ("test", "flags", "figure"),
    [("write-bw", ["-n", 500], "goodput_gbps"), ("write-lat", ["-n", 50], "avg_us")],
)
def test_both_measurements_take_every_path_of_the_fabric(lab, test, flags, figure):
    before = counted(lab)
    with at(lab, SERVER, test, "--srv6") as server:
        until_listening(server)
        client = run_at(lab, CLIENT, test, "--srv6", "--json", *flags, address(lab))
        assert client.returncode == 0, client.stderr
        assert server.wait(PATIENCE) == 0
    assert json.loads(client.stdout)[figure] > 0
    if test == "write-bw":
        loads = carried(lab, before, counted(lab))
        used = {link for path in lab.fabric.paths(CLIENT, SERVER) for link in path.links}
        # 500 messages of 16 packets over 8 paths: each link carries a thousand, spread by the sender alone.
        assert all(max(loads[link]) > 100 for link in used)


@needs_root
def test_the_header_says_srv6_and_how_many_paths_there_are(lab):
    with at(lab, SERVER, "write-bw", "--srv6") as server:
        until_listening(server)
        client = run_at(lab, CLIENT, "write-bw", "--srv6", "-n", 10, address(lab))
    assert client.returncode == 0, client.stderr
    assert "MRC over SRv6" in client.stdout
    assert f"Paths           : {len(lab.fabric.paths(CLIENT, SERVER))}" in client.stdout


@needs_root
def test_files_travel_by_source_routes_named_by_hand(lab, tmp_path):
    # As outside a lab: the specification from a file, both hosts by name.
    fabric = specification(tmp_path, lab.name)
    (tmp_path / "inbox").mkdir()
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 20_000)
    by_hand = ["--srv6", "--fabric", fabric]
    with at(
        lab, SERVER, "serve", *by_hand, "--this-host", SERVER, *TO_ALL, "--once", "--json", tmp_path / "inbox"
    ) as server:
        assert json.loads(server.stdout.readline())["kind"] == "listening"
        flags = [*by_hand, "--this-host", CLIENT, "--peer-host", SERVER, "--json"]
        sent = run_at(lab, CLIENT, "put", *flags, file, address(lab))
        assert sent.returncode == 0, sent.stderr
        assert server.wait(PATIENCE) == 0
    assert (tmp_path / "inbox" / "file").read_bytes() == file.read_bytes()
    planes = json.loads(sent.stdout)["planes"]
    assert [plane["address"] for plane in planes] == lab.addresses(CLIENT)
    assert all(plane["tx_packets"] > 0 for plane in planes)


@needs_root
@pytest.mark.skipif(SETPRIV is None, reason="setpriv is not installed (Debian: apt install util-linux)")
def test_without_the_privilege_the_reason_is_named(lab, tmp_path):
    without = [SETPRIV, "--bounding-set=-net_raw", "--inh-caps=-net_raw"]
    result = run_at(lab, SERVER, "serve", "--srv6", tmp_path, prefix=without)
    assert "CAP_NET_RAW" in error_line(result)
    assert result.stdout == ""


@needs_root
def test_an_end_in_srv6_mode_and_one_over_udp_tell_each_other(lab, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "inbox").mkdir()
    with at(lab, SERVER, "serve", *TO_ALL, "--once", "--json", tmp_path / "inbox") as server:
        server.stdout.readline()
        sent = run_at(lab, CLIENT, "put", "--srv6", file, address(lab))
        assert server.wait(PATIENCE) == 1
        assert "format srv6, this end udp" in server.stdout.read()
    assert "refuses: the other end has entropy values of format srv6, this end udp" in error_line(sent)


@needs_root
def test_a_peer_that_is_no_host_of_the_fabric_is_named(lab):
    with at(lab, SERVER, "write-bw", "--srv6") as server:
        until_listening(server)
        # The client claims to be elsewhere: the server looks its address up in the fabric.
        flags = ["--srv6", "--this-host", CLIENT, "--peer-host", CLIENT]
        result = run_at(lab, CLIENT, "write-bw", *flags, address(lab))
    assert f"{CLIENT} is this host itself" in error_line(result)


# --- what cannot work; needs no lab -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["write-bw", "--srv6", "::1"], "--srv6 needs --fabric"),
        (["write-bw", "--fabric", "FILE", "::1"], "say --srv6"),
        (["write-lat", "--this-host", "h0", "::1"], "say --srv6"),
        (["write-bw", "--srv6", "--fabric", "/does/not/exist", "::1"], "/does/not/exist: No such file"),
        (["write-bw", "--srv6", "--fabric", "FILE", "::1"], "--this-host"),
        (["write-bw", "--srv6", "--fabric", "FILE", "--this-host", "h99", "::1"], "h99"),
        (["write-bw", "--srv6", "--fabric", "FILE", "--this-host", "p0/t0-0", "::1"], "not a host"),
        (["write-bw", "--srv6", "--fabric", "FILE", "--this-host", "h0", "--planes", "2"], "--planes"),
        (["write-bw", "--srv6", "--fabric", "FILE", "--this-host", "h0", "--loopback"], "two hosts"),
        (
            ["put", "--srv6", "--fabric", "FILE", "--this-host", "h0", "/etc/hostname", "[::1]:1"],
            "openmrc serve",
        ),
        (["serve", "--srv6", "--fabric", "FILE", "/tmp"], "--this-host"),
    ],
)
def test_what_cannot_work_in_srv6_mode_is_said_in_one_line(tmp_path, arguments, says):
    fabric = specification(tmp_path, "nowhere")
    result = run(*[fabric if argument == "FILE" else argument for argument in arguments])
    assert says in error_line(result)
