"""A lab as its user works in it: names, no options in its hosts, a shell, the graph, slow links."""

import json
import os
import pty
import subprocess
import time

import pytest

from openmrc import colours
from openmrc.errors import ArgumentError
from openmrc.lab import names
from tests.helpers.commands import OPENMRC, one_line_error
from tests.helpers.labs import needs_root, running

CLIENT, SERVER = "h0", "h5"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("lab"), "hosts", hosts=8, planes=2) as lab:
        yield lab


def at(lab, node, *arguments, **options):
    return subprocess.run(
        lab.command(node, list(map(str, arguments))),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def command(lab, *arguments):
    """The command line as a user outside the lab types it."""
    return subprocess.run(
        [*OPENMRC, "lab", *arguments, "--lab", lab.name], capture_output=True, text=True, timeout=60
    )


class Listening:
    """A server at a host, until the end of the block."""

    def __init__(self, lab, *arguments):
        self._process = subprocess.Popen(
            lab.command(SERVER, [*OPENMRC, *map(str, arguments)]), stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        while line := self._process.stdout.readline():
            if "TCP port" in line or "listening" in line:
                break
        return self._process

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


@needs_root
def test_a_host_s_name_stands_for_its_addresses_in_every_plane(lab):
    found = at(lab, CLIENT, "getent", "ahosts", SERVER)
    assert found.returncode == 0
    assert {line.split()[0] for line in found.stdout.splitlines()} == set(lab.addresses(SERVER))
    assert at(lab, "p0/t0-0", "getent", "hosts", SERVER).returncode == 0
    assert at(lab, CLIENT, "getent", "hosts", "localhost").returncode == 0


@needs_root
def test_names_leave_with_the_lab(tmp_path):
    with running(tmp_path, "names", hosts=4, radix=4) as other:
        spaces = other.state.namespaces
        assert all((names.ROOT / space / "hosts").exists() for space in spaces)
    assert not any((names.ROOT / space).exists() for space in spaces)


@needs_root
@pytest.mark.parametrize("flags", [[], ["--addresses", "p0,p1"]])
def test_write_bw_in_a_host_needs_no_option_and_takes_interfaces(lab, flags):
    with Listening(lab, "write-bw"):
        result = at(lab, CLIENT, *OPENMRC, "write-bw", *flags, "-n", "50", SERVER)
    assert result.returncode == 0, result.stderr
    assert "RDMA_Write BW Test" in result.stdout


@needs_root
def test_without_options_the_paths_are_the_fabric_s(lab):
    before = lab.counters(CLIENT)
    with Listening(lab, "write-bw"):
        result = at(lab, CLIENT, *OPENMRC, "write-bw", "-n", "200", SERVER)
    assert f"Paths           : {len(lab.fabric.paths(CLIENT, SERVER))}" in result.stdout
    sent = {port: lab.counters(CLIENT)[port].tx_packets - before[port].tx_packets for port in before}
    assert min(sent.values()) > 0.3 * max(sent.values())


@needs_root
def test_files_go_from_host_to_host_without_an_option(lab, tmp_path):
    (tmp_path / "inbox").mkdir()
    (tmp_path / "file").write_bytes(bytes(range(256)) * 1000)
    with Listening(lab, "serve", "--json", tmp_path / "inbox"):
        result = at(lab, CLIENT, *OPENMRC, "put", tmp_path / "file", SERVER)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "inbox" / "file").read_bytes() == (tmp_path / "file").read_bytes()
    assert "over 2 planes" in result.stdout


@needs_root
def test_loopback_in_a_host_is_loopback(lab):
    result = at(lab, CLIENT, *OPENMRC, "write-bw", "--loopback", "-n", "10", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["iterations"] == 10


@needs_root
def test_path_in_a_host_knows_the_fabric(lab):
    result = at(lab, CLIENT, *OPENMRC, "path", CLIENT, SERVER, "--json")
    assert json.loads(result.stdout)["count"] == len(lab.fabric.paths(CLIENT, SERVER))


@needs_root
def test_a_shell_is_at_its_host_and_says_so(lab):
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*OPENMRC, "lab", "shell", CLIENT, "--lab", lab.name],
        stdin=child,
        stdout=child,
        stderr=child,
        env={**os.environ, "SHELL": "/bin/bash"},
        start_new_session=True,
    )
    os.close(child)
    os.write(parent, b"ip netns identify $$; exit 7\n")
    shown = b""
    while True:
        try:
            shown += os.read(parent, 65536)
        except OSError:
            break
    os.close(parent)
    assert process.wait(timeout=60) == 7
    assert f"({CLIENT})" in shown.decode()
    assert lab.namespace(CLIENT) in shown.decode()


@needs_root
def test_the_graph_has_every_cable_and_what_has_failed(lab, tmp_path):
    cut, slow, stopped = "p0/t0-0:up1", f"{CLIENT}:p1", "p1/t1-0"
    lab.fail(cut)
    lab.fail(stopped)
    lab.degrade(slow, loss=0.01, rate=50_000_000)
    try:
        shown = command(lab, "graph")
        assert shown.returncode == 0, shown.stderr
        assert max(map(len, shown.stdout.splitlines())) <= 80
        for link in lab.layout.links.values():
            for end in link.ends:
                if end.node in lab.layout.switches:
                    assert f"{end.port} " in shown.stdout
        assert "up1 p0/t1-1 (cut)" in shown.stdout
        assert "p1/t1-0 (stopped)" in shown.stdout
        assert f"{CLIENT} (loses 1 %, carries 50 Mb/s)" in " ".join(shown.stdout.split())
        links = {each["name"]: each for each in json.loads(command(lab, "graph", "--json").stdout)["links"]}
        assert links[lab.layout.link(cut).name]["cut"]
        assert links[lab.layout.link(slow).name]["rate_bps"] == 50_000_000
        assert sum(each["cut"] for each in links.values()) == 1
        picture = tmp_path / "lab.svg"
        assert command(lab, "graph", "--picture", str(picture)).returncode == 0
        drawn = picture.read_text()
        failed = {lab.layout.link(cut).name, *(link.name for link in lab.layout.links_of(stopped))}
        # One more than the links: the frame of the stopped switch.
        assert drawn.count(colours.FAILED) == len(failed) + 1
        assert drawn.count(colours.IMPAIRED) == 1
    finally:
        lab.repair()
    assert "(" not in command(lab, "graph").stdout


@needs_root
def test_a_slow_link_is_as_slow_as_it_is_told(lab):
    assert command(lab, "degrade", f"{SERVER}:p0", "--rate", "40M").returncode == 0
    assert command(lab, "degrade", f"{SERVER}:p1", "--rate", "40M").returncode == 0
    try:
        assert "carries 40 Mb/s" in command(lab, "status").stdout
        with Listening(lab, "write-bw"):
            result = at(lab, CLIENT, *OPENMRC, "write-bw", "-s", "4K", "-D", "2s", "--json", SERVER)
        goodput = json.loads(result.stdout)["goodput_gbps"]
    finally:
        assert command(lab, "repair").returncode == 0
    # Two planes of 40 Mb/s each; the buckets let a little more through at the beginning.
    assert goodput < 0.1
    assert lab.state.load(lab.name).impaired == []


@needs_root
def test_delay_adds_to_both_directions_or_the_kernel_is_named(lab):
    done = command(lab, "degrade", f"{SERVER}:p0", "--delay", "50ms")
    if done.returncode:
        assert "this kernel cannot delay packets: it has no netem" in one_line_error(done)
        assert lab.state.load(lab.name).impaired == []
        return
    try:
        begun = time.monotonic()
        assert at(lab, CLIENT, "ping", "-c", "1", "-W", "5", lab.addresses(SERVER)[0]).returncode == 0
        assert time.monotonic() - begun > 0.1
    finally:
        lab.repair()


@needs_root
@pytest.mark.parametrize("delay", [-1.0, 5.0])
def test_a_delay_that_no_link_can_have_is_refused(lab, delay):
    with pytest.raises(ArgumentError, match="delay"):
        lab.degrade(f"{SERVER}:p0", delay=delay)
