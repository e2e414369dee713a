"""Jobs that lose workers and take them back, with processes that are killed and stopped in earnest."""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from openmrc.collectives.coordinator import PROTOCOL, Membership
from openmrc.collectives.elastic import Coordinator, Elastic
from openmrc.control import GreetingError, Limits, LostError, Token, dial
from openmrc.errors import ArgumentError, ConnectError, DeadlineError, StateError

SECRET = "0123456789abcdef0123456789abcdef"
STEPS = 150
WORKER = """
    import sys
    import numpy as np
    from openmrc.collectives.elastic import Elastic

    total = np.zeros(60_000)

    def load(data):
        total[:] = np.frombuffer(data)

    until = int(sys.argv[3])
    with Elastic((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[4])) as job:
        while True:
            job.begin(total.tobytes, load)
            step, size = job.steps, job.size
            part = np.full(total.size, float(step))
            job.all_reduce(part, op="avg")
            if job.commit():
                total += part
            print(step, size, flush=True)
            # What all workers know alike: they end together.
            if job.steps >= STEPS and size == until:
                break
        print("total", sum(range(job.steps)), total.min(), total.max(), flush=True)
"""


def start(coordinator, until, shared="1", timeout=30):
    """A worker that ends after STEPS steps, once the group has ``until`` workers."""
    host, port = coordinator.address
    code = textwrap.dedent(WORKER).replace("STEPS", str(STEPS))
    return subprocess.Popen(
        [sys.executable, "-c", code, host, str(port), str(until), str(timeout)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENMRC_SHARED_MEMORY": shared},
    )


def wait_for_step(worker, step, size):
    """Until it has done this step or a later one in a group of this size."""
    for line in worker.stdout:
        done, others = map(int, line.split())
        if done >= step and others == size:
            return
    raise AssertionError(worker.stderr.read())


def finish(workers):
    """Sizes of the groups that each worker has seen; every step counts exactly once at each of them."""
    sizes = []
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err[-3000:]
        *steps, last = [line.split() for line in out.splitlines()]
        word, expected, *found = last
        assert (word, [float(each) for each in found]) == ("total", 2 * [float(expected)])
        sizes.append({int(size) for _, size in steps})
    return sizes


@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "network"])
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_worker_is_left_out_and_taken_back(seed, shared):
    dice = random.Random(seed)
    with Coordinator(least=2) as coordinator:
        workers = [start(coordinator, 3, shared) for _ in range(3)]
        victim = workers.pop(dice.randrange(3))
        wait_for_step(victim, dice.randrange(1, 20), 3)
        try:
            victim.communicate(timeout=dice.random() * 0.02)
        except subprocess.TimeoutExpired:
            victim.kill()
        victim.communicate()
        wait_for_step(workers[0], 40, 2)
        workers.append(start(coordinator, 3, shared))
        sizes = finish(workers)
    assert sizes[0] == sizes[1] == {2, 3}
    assert 3 in sizes[2]


def test_a_worker_killed_at_the_beginning_of_a_group_keeps_nobody_waiting():
    with Coordinator(least=2) as coordinator:
        dead = Membership(coordinator.address, lambda rank: None)
        workers = [start(coordinator, 2) for _ in range(2)]
        # It is in the first group and never comes to it.
        assert dead.decision(60).size >= 2
        dead.close()
        assert finish(workers)[0] >= {2}


def test_a_stopped_worker_is_left_out_and_ends_with_the_reason():
    with Coordinator(least=2, patience=2) as coordinator:
        workers = [start(coordinator, 2, timeout=3) for _ in range(3)]
        stopped = workers.pop(1)
        wait_for_step(stopped, 10, 3)
        stopped.send_signal(signal.SIGSTOP)
        finish(workers)
        stopped.send_signal(signal.SIGCONT)
        _, err = stopped.communicate(timeout=60)
        assert "ConnectError" in err


def test_a_job_waits_until_enough_workers_have_come():
    with Coordinator(least=2) as coordinator:
        with Elastic(coordinator.address, timeout=0.3) as alone:
            with pytest.raises(DeadlineError, match="not enough workers"):
                alone.begin()
            with pytest.raises(StateError, match="begin"):
                alone.commit()
        finish([start(coordinator, 2), start(coordinator, 2)])


def test_one_worker_is_a_job_too():
    with Coordinator() as coordinator, Elastic(coordinator.address) as job:
        for step in range(3):
            job.begin()
            assert (job.rank, job.size, job.steps, job.generation) == (0, 1, step, 1)
            assert job.commit()


def test_a_step_that_failed_somewhere_does_not_count():
    with Coordinator() as coordinator, Elastic(coordinator.address) as job:
        job.begin()
        job.fail(StateError("the batch was empty"))
        assert not job.commit()
        job.begin()
        assert job.steps == 0
        assert job.generation == 2
        assert job.commit()


def test_a_coordinator_that_goes_is_an_error_and_not_a_hang():
    coordinator = Coordinator()
    with Elastic(coordinator.address) as job:
        job.begin()
        coordinator.close()
        with pytest.raises(ConnectError, match="coordinator"):
            job.commit()


def test_what_is_no_coordinator_is_said():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
        silent.close()
        with pytest.raises(ConnectError, match="no coordinator answers"):
            Elastic(address)
    with pytest.raises(ArgumentError, match="at least 1"):
        Coordinator(least=0)


def test_strangers_do_not_disturb():
    with Coordinator() as coordinator:
        nested = b"[" * 60_000 + b"\n"
        for words in (b"GET / HTTP/1.0\r\n\r\n", b"[1]\n", b"\xff" * 200_000, b'{"ok": true}\n', nested, b""):
            with socket.create_connection(coordinator.address) as stranger:
                stranger.sendall(words)
        with Elastic(coordinator.address) as job:
            job.begin()
            assert job.size == 1
            assert job.commit()


def test_only_workers_with_the_token_join():
    with Coordinator(token=Token(SECRET)) as coordinator:
        for token in (Token(SECRET[::-1]), None):
            with pytest.raises(GreetingError, match=r"different tokens|asks for a token"):
                Elastic(coordinator.address, token=token)
        with Elastic(coordinator.address, token=Token(SECRET)) as job:
            job.begin()
            assert job.size == 1
            assert job.commit()
    with Coordinator() as coordinator, pytest.raises(ConnectError, match="asks for a token"):
        Elastic(coordinator.address, token=Token(SECRET))


def test_whoever_does_not_join_is_sent_away():
    with (
        Coordinator(limits=Limits(greeting=0.2)) as coordinator,
        Elastic(coordinator.address) as job,
        socket.create_connection(coordinator.address, timeout=30) as silent,
        dial(PROTOCOL, *coordinator.address, "") as greeted,
    ):
        assert silent.recv(1) == b""
        with pytest.raises(LostError, match="closed the connection"):
            greeted.receive(30)
        job.begin()
        assert job.commit()


def test_a_coordinator_that_says_nothing_is_given_up():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ConnectError, match="no coordinator answers"),
    ):
        Elastic(silent.getsockname(), timeout=0.3)
