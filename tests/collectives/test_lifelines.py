"""A rank that ends is noticed on other hosts by the end of its process; one that is stopped is not lost."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

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


@needs_root
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_is_named_on_the_other_host(victim):
    with two_hosts(2) as hosts:
        processes = []
        for rank in range(4):
            host = 1 + rank // 2
            job = {
                "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": address(0, 1), "MASTER_PORT": "29555",
                "OPENMRC_ADDRESSES": "p0,p1",
            }  # fmt: skip
            inside = ["ip", "netns", "exec", hosts.names[host]]
            processes.append(
                subprocess.Popen(
                    [*inside, sys.executable, "-c", textwrap.dedent(LOOP)],
                    env={**os.environ, **job},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        processes[victim].kill()
        processes[victim].communicate()
        outs = finish([process for process in processes if process is not processes[victim]])
    assert all(out.startswith(("RankLostError", "AbortedError")) for out in outs), outs
    lost = [out for out in outs if out.startswith("RankLostError")]
    assert lost, outs
    assert all(f"rank {victim} on" in out and "its process has ended" in out for out in lost), outs


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
