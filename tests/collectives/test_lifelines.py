"""A rank or a host that ends is noticed on other hosts. One that is stopped, or one plane, is not lost."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from openmrc.collectives.lifelines import SILENCE
from openmrc.collectives.pulse import Pulse
from tests.helpers.labs import needs_root
from tests.helpers.planes import address, two_hosts
from tests.helpers.ranks import finish, start

LOOP = """
    from openmrc.collectives import Communicator
    import numpy as np
    comm = Communicator.from_environment(timeout=600)
    x = np.ones(1000)
    comm.barrier()
    print("ready", flush=True)
    try:
        while True:
            comm.all_reduce(x, op="max")
    except Exception as error:
        print(type(error).__name__, error)
    comm.abort()
"""


UNTIL_TOLD = """
    import select, sys
    from openmrc.collectives import Communicator
    import numpy as np
    comm = Communicator.from_environment(timeout=600)
    comm.barrier()
    print("ready", flush=True)
    over = np.zeros(1, "int32")
    while not over[0]:
        over[0] = comm.rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        comm.all_reduce(over, op="max")
    print("over", flush=True)
    comm.barrier()
"""


@contextlib.contextmanager
def job(loop, ranks=4):
    """Ranks on two hosts with two planes, half of them on each, when all are ready."""
    with two_hosts(2) as hosts:
        processes = []
        for rank in range(ranks):
            host = 1 + rank // (ranks // 2)
            variables = {
                "RANK": str(rank), "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": address(0, 1), "MASTER_PORT": "29555",
                "OPENMRC_ADDRESSES": "p0,p1",
            }  # fmt: skip
            inside = ["ip", "netns", "exec", hosts.names[host]]
            processes.append(
                subprocess.Popen(
                    [*inside, sys.executable, "-c", textwrap.dedent(loop)],
                    env={**os.environ, **variables},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        try:
            for process in processes:
                assert process.stdout.readline() == "ready\n", process.communicate()[1]
            yield hosts, processes
        finally:
            for process in processes:
                process.kill()
                process.communicate()


@needs_root
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_is_named_on_the_other_host(victim):
    with job(LOOP) as (_, processes):
        processes[victim].kill()
        outs = finish([process for process in processes if process is not processes[victim]])
    assert all(out.startswith(("RankLostError", "AbortedError")) for out in outs), outs
    lost = [out for out in outs if out.startswith("RankLostError")]
    assert lost, outs
    assert all(f"rank {victim} on" in out and "its process has ended" in out for out in lost), outs


@needs_root
@pytest.mark.parametrize("host", [1, 2])
def test_a_host_that_loses_all_its_planes_is_named_on_the_other(host):
    """Nothing of it arrives any more, as if its power were off; its queue pairs would give up after 34 s."""
    with job(LOOP) as (hosts, processes):
        for plane in (0, 1):
            hosts.ip(3 - host, "link", "set", f"p{plane}", "down")
        outs = finish(processes)
    assert all(out.startswith(("RankLostError", "AbortedError")) for out in outs), outs
    here, gone = ([0, 1], [2, 3]) if host == 2 else ([2, 3], [0, 1])
    # Each side is a host that does not answer to the other.
    for side, other in ((here, gone), (gone, here)):
        lost = [outs[rank] for rank in side if outs[rank].startswith("RankLostError")]
        assert lost, outs
        for out in lost:
            assert "its host does not answer" in out, outs
            assert any(f"rank {rank} on" in out for rank in other), outs


@needs_root
def test_the_plane_of_the_first_connection_is_cut_and_nobody_is_lost():
    """The pulses on the other plane are answered; the first plane's come again when it is back."""
    with job(UNTIL_TOLD) as (hosts, processes):
        for _ in range(2):
            hosts.ip(2, "link", "set", "p0", "down")
            time.sleep(2 * SILENCE)
            hosts.ip(2, "link", "set", "p0", "up")
            time.sleep(SILENCE)
        assert_all_go_on(processes)


@needs_root
@pytest.mark.parametrize("victim", [0, 3])
def test_a_rank_of_another_host_that_is_stopped_for_a_while_is_not_lost(victim):
    """Its kernel answers the pulses; and when it goes on, its own pulses of before count for nothing."""
    with job(UNTIL_TOLD) as (_, processes):
        processes[victim].send_signal(signal.SIGSTOP)
        time.sleep(5 * SILENCE)
        processes[victim].send_signal(signal.SIGCONT)
        time.sleep(2 * SILENCE)
        assert_all_go_on(processes)


def assert_all_go_on(processes):
    processes[0].stdin.write("over\n")
    processes[0].stdin.flush()
    assert finish(processes) == ["over\n"] * len(processes)


def test_a_process_that_does_not_read_is_not_silent():
    """Its window closes: what then waits was not sent, so nothing is missing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        with socket.create_connection(listener.getsockname()) as ours:
            theirs, _ = listener.accept()
            with theirs:
                ours.setblocking(False)
                pulse = Pulse(ours, b"p")
                with contextlib.suppress(BlockingIOError):
                    while True:
                        ours.send(bytes(256))
                # The last segment found no room and is repeated; from then on nothing is under way.
                quiet = 0
                while quiet < 20:
                    quiet = quiet + 1 if pulse.beat() == 0.0 else 0
                    time.sleep(0.05)
                while theirs.recv(1 << 20, socket.MSG_DONTWAIT):
                    if not select.select([theirs], [], [], 1)[0]:
                        break
                assert pulse.beat() == 0.0
                assert select.select([theirs], [], [], 60)[0]
                assert theirs.recv(1 << 20).endswith(b"p")


def test_a_rank_that_is_not_in_an_operation_passes_the_news_on():
    """Rank 0 knows of the end of rank 2 first, and calls nothing; rank 1 waits for rank 2."""
    script = """
        print("ready", flush=True)
        if rank == 0:
            time.sleep(600)
        elif rank == 1:
            try:
                comm.recv(np.empty(3), 2)
            except Exception as error:
                print(type(error).__name__, error)
        else:
            time.sleep(600)
        os._exit(0)
    """
    processes = start(script, 3, SHARED="0")
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    processes[2].kill()
    processes[2].communicate()
    out, _ = processes[1].communicate(timeout=240)
    processes[0].kill()
    processes[0].communicate()
    assert out.startswith("RankLostError")
    assert "rank 2" in out
    assert "its process has ended" in out


def test_a_rank_that_is_stopped_for_a_while_is_not_lost():
    script = """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        x = np.ones(10)
        comm.all_reduce(x)
        assert (x == size).all()
    """
    processes = start(script, 3, SHARED="0")
    _, status = os.waitpid(processes[1].pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    time.sleep(5)
    processes[1].send_signal(signal.SIGCONT)
    finish(processes)


def test_children_of_a_rank_do_not_keep_it_alive():
    script = """
        if rank == 1:
            child = os.fork()
            if child == 0:
                os.close(1)
                os.close(2)
                time.sleep(600)
            print(child, flush=True)
            time.sleep(600)
        print("ready", flush=True)
        try:
            comm.recv(np.empty(3), 1)
        except Exception as error:
            print(type(error).__name__, error)
        os._exit(0)
    """
    processes = start(script, 2, SHARED="0")
    child = int(processes[1].stdout.readline())
    assert processes[0].stdout.readline() == "ready\n"
    try:
        processes[1].kill()
        processes[1].communicate()
        [out] = finish(processes[:1])
    finally:
        os.kill(child, signal.SIGKILL)
    assert out.startswith("RankLostError")
    assert "its process has ended" in out
