"""Debian's perftest and ibverbs-utils, unmodified, over MRC."""

import subprocess
import time
from pathlib import Path

import pytest

from openmrc import clibrary
from tests.helpers import programs
from tests.helpers.commands import OPENMRC
from tests.helpers.debian_perftest import PORT, rows
from tests.helpers.ends import loopback
from tests.helpers.programs import need_tool, with_device

PATIENCE = 180
"""Seconds. Both ends spin: beside other programs each turn between them waits for a processor."""
LISTENING = "0A"
CONNECTED = "01"
ADDRESSES = loopback(4)


@pytest.fixture(scope="module", autouse=True)
def _perftest():
    need_tool("ib_write_bw", "perftest")


def start(tool, *arguments, options=()):
    """One end, through ``openmrc run``."""
    command = [*OPENMRC, "run", "--addresses", ",".join(ADDRESSES), *options, "--", tool, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def name(arguments):
    """A case's name: its command."""
    return " ".join(arguments)


def wait_until_listening(server, state=LISTENING):
    """Waits until the program's own TCP port is open (or connected), or it has ended."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and server.poll() is None:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        lines += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
        if any(line[1].endswith(f":{PORT:04X}") and line[3] == state for line in lines):
            return
        time.sleep(0.02)


def both_ends(tool, *arguments, options=()):
    """Runs a tool at both ends; the client's exit code and output, and the server's exit code and output."""
    server = start(tool, *arguments, options=options)
    wait_until_listening(server)
    client = start(tool, *arguments, "127.0.0.1", options=options)
    try:
        said = client.communicate(timeout=PATIENCE)[0]
        if client.returncode:
            server.kill()
        heard = server.communicate(timeout=PATIENCE)[0]
    finally:
        # A server that is left would have the port of the next test's.
        client.kill()
        server.kill()
    return client.returncode, said, server.returncode, heard


@pytest.mark.parametrize(
    "arguments",
    [
        ["ib_write_bw", "-n", "500"],
        ["ib_write_bw", "-n", "500", "-b", "--report_gbits"],
        ["ib_write_bw", "-n", "300", "-q", "4", "-s", "16384"],
        ["ib_write_bw", "-D", "1", "--report_gbits"],
        pytest.param(["ib_write_bw", "-n", "504", "-l", "8", "-s", "64"], marks=pytest.mark.long),
        pytest.param(
            ["ib_write_bw", "-n", "500", "-Q", "1", "-m", "1024", "-x", "3"], marks=pytest.mark.long
        ),
        ["ib_write_lat", "-n", "300"],
        pytest.param(["ib_write_lat", "-n", "300", "-s", "4096"], marks=pytest.mark.long),
    ],
    ids=name,
)
def test_a_run_ends_well_with_plausible_figures(arguments):
    code, said, server_code, heard = both_ends(*arguments)
    assert (code, server_code) == (0, 0), said + heard
    (row,) = rows(said)
    assert row[1] >= 300
    if arguments[0] == "ib_write_bw":
        assert 0 < row[3] < 1_000_000
    else:
        assert 0 < row[2] <= row[4]


@pytest.mark.parametrize("tool", ["ib_write_bw", pytest.param("ib_write_lat", marks=pytest.mark.long)])
def test_every_size(tool):
    code, said, server_code, heard = both_ends(tool, "-a", "-n", "20")
    assert (code, server_code) == (0, 0), said + heard
    assert [int(row[0]) for row in rows(said)] == [2**i for i in range(1, 24)]


def test_a_run_survives_loss_and_the_end_of_a_plane():
    impairments = ["--impair", "loss=0.5%", "--fail-port", "2@0.3s"]
    code, said, server_code, heard = both_ends(
        "ib_write_bw", "-D", "2", "--report_gbits", options=impairments
    )
    assert (code, server_code) == (0, 0), said + heard
    assert rows(said)[0][3] > 0


@pytest.mark.parametrize("timeout", ["10", pytest.param("14", marks=pytest.mark.long)])
def test_a_killed_server_ends_the_client_when_the_retries_do(timeout):
    arguments = ["ib_write_bw", "-D", "600", "-u", timeout]
    server = start(*arguments)
    wait_until_listening(server)
    client = start(*arguments, "127.0.0.1")
    # It may take long to start. Once it has connected it writes soon.
    wait_until_listening(server, CONNECTED)
    time.sleep(3)
    assert client.poll() is None, client.communicate()[0]
    server.kill()
    said = client.communicate(timeout=PATIENCE)[0]
    server.communicate()
    assert client.returncode > 0
    assert "status 12" in said or "transport retry counter exceeded" in said


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ib_send_bw"], "SEND refused, MRC has only WRITE"),
        (["ib_send_lat"], "SEND refused, MRC has only WRITE"),
        (["ib_read_bw"], "RDMA_READ refused, MRC has only WRITE"),
        (["ib_atomic_bw"], "ATOMIC_FETCH_AND_ADD refused, MRC has only WRITE"),
        (["ib_send_bw", "-b"], "SEND refused, MRC has only WRITE"),
        (["ib_send_bw", "-e", "-q", "4"], "SEND refused, MRC has only WRITE"),
        (["ib_read_lat"], "RDMA_READ refused, MRC has only WRITE"),
        (["ib_atomic_lat", "-A", "CMP_AND_SWAP"], "ATOMIC_CMP_AND_SWP refused, MRC has only WRITE"),
        (["ib_send_bw", "-c", "UD"], "UD refused, MRC has only RC"),
        (["ib_write_bw", "-c", "UC"], "UC refused, MRC has only RC"),
        (["ib_send_bw", "--use-srq"], "refused, MRC has"),
        (["ib_write_bw", "-R"], "rdma_create_event_channel failed"),
        (["ibv_rc_pingpong", "-g", "0"], "SEND refused, MRC has only WRITE"),
        (["ibv_uc_pingpong", "-g", "0"], "UC refused, MRC has only RC"),
        (["ibv_ud_pingpong", "-g", "0"], "refused, MRC has"),
        (["ibv_srq_pingpong", "-g", "0"], "refused, MRC has"),
    ],
    ids=str,
)
def test_what_mrc_lacks_ends_both_ends_with_the_reason(arguments, reason):
    need_tool(arguments[0], "ibverbs-utils")
    server = start(*arguments)
    wait_until_listening(server)
    client = start(*arguments, "127.0.0.1")
    said = client.communicate(timeout=PATIENCE)[0]
    # Nobody ends it: it waits for ever if it is not told.
    heard = server.communicate(timeout=PATIENCE)[0]
    assert (client.returncode > 0, server.returncode > 0) == (True, True), said + heard
    assert reason in said + heard


def test_a_server_that_waits_for_sends_is_told_why_none_come():
    server = start("ib_send_bw")
    wait_until_listening(server)
    start("ib_send_bw", "127.0.0.1").communicate(timeout=PATIENCE)
    heard = server.communicate(timeout=PATIENCE)[0]
    assert "ended by the peer; the program waits for SENDs" in heard


def test_the_device_is_listed():
    need_tool("ibv_devinfo", "ibverbs-utils")
    environment = clibrary.preloaded(with_device())
    listed = subprocess.run(
        ["ibv_devices"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "mrc0" in listed
    shown = subprocess.run(
        ["ibv_devinfo", "-v"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "PORT_ACTIVE" in shown
    assert f"::ffff:{programs.ADDRESSES[0]}, RoCE v2" in shown
