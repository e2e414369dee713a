"""Ranks that are killed, stopped, or whose host disappears, at moments of operations that a seed chooses."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from openmrc.collectives.rendezvous import local_ranks
from tests.helpers.labs import needs_root
from tests.helpers.ranks import HEAD, finish, start

SEEDS = int(os.environ.get("OPENMRC_SEEDS", "40" if "OPENMRC_LONG" in os.environ else "2"))
OPERATIONS = {
    "all_reduce ring": "comm.all_reduce(x, algorithm='ring', timeout=LIMIT)",
    "all_reduce halving": "comm.all_reduce(x, algorithm='halving', timeout=LIMIT)",
    "all_reduce doubling": "comm.all_reduce(x, algorithm='doubling', timeout=LIMIT)",
    "all_reduce direct": "comm.all_reduce(x, algorithm='direct', timeout=LIMIT)",
    "all_reduce tree": "comm.all_reduce(x, algorithm='tree', timeout=LIMIT)",
    "reduce_scatter": "comm.reduce_scatter(x, part, timeout=LIMIT)",
    "all_gather": "comm.all_gather(part, x, timeout=LIMIT)",
    "all_to_all": "comm.all_to_all(x, y, timeout=LIMIT)",
    "broadcast tree": "comm.broadcast(x, algorithm='tree', timeout=LIMIT)",
    "broadcast chain": "comm.broadcast(x, algorithm='chain', timeout=LIMIT)",
    "reduce chain": "comm.reduce(x, algorithm='chain', timeout=LIMIT)",
    "gather": "comm.gather(part, x, timeout=LIMIT)",
    "scatter": "comm.scatter(part, x, timeout=LIMIT)",
    "barrier": "comm.barrier(timeout=LIMIT)",
    "send": "comm.send(x, (rank + 1) % size, async_op=True, timeout=LIMIT);"
    " comm.recv(y, (rank - 1) % size, timeout=LIMIT)",
}
SCRIPT = """
    import threading
    operation, number, victim, share, LIMIT = (
        os.environ["OPERATION"], int(os.environ["SIGNAL"]), int(os.environ["VICTIM"]),
        float(os.environ["SHARE"]), float(os.environ["LIMIT"]),
    )
    x = np.ones(400_000, np.float32)
    y = np.empty_like(x)
    part = np.ones(x.size // size, np.float32)
    call = compile(operation, "operation", "exec")
    times = []
    for _ in range(5):
        began = time.monotonic()
        exec(call)
        times.append(time.monotonic() - began)
    comm.barrier()
    print("ready", flush=True)

    def end(delay):
        time.sleep(delay)
        print("ending", flush=True)
        os.kill(os.getpid(), number)

    if rank == victim:
        threading.Thread(target=end, args=(share * sorted(times)[2],), daemon=True).start()
    try:
        while True:
            exec(call)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    print(words, flush=True)
    if rank == victim:
        os._exit(1)  # It was stopped, and goes on.
    smaller = comm.remake([each for each in range(size) if each != victim])
    z = np.array([rank])
    smaller.all_reduce(z)
    print(z[0], flush=True)
    smaller.close()
"""


def chosen(seed):
    """Operation, rank that ends, and after which share of an operation. Rank 0 serves the store."""
    draw = random.Random(seed)
    return draw.choice(list(OPERATIONS)), 1 + draw.randrange(3), draw.random()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "network"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_ends_at_any_moment_is_named_and_the_others_go_on(number, shared, seed):
    name, victim, share = chosen(seed)
    told = {"OPERATION": OPERATIONS[name], "SIGNAL": str(int(number)), "VICTIM": str(victim)}
    limit = 60 if number is signal.SIGKILL else 8
    processes = start(SCRIPT, 4, SHARED=shared, SHARE=str(share), LIMIT=str(limit), **told)
    others = [process for rank, process in enumerate(processes) if rank != victim]
    try:
        outs = finish(others)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    about = f"seed {seed}: {name}, rank {victim} after {share:.2f}: {outs}"
    assert any(f"rank {victim}" in out for out in outs), about
    assert {out.splitlines()[-1] for out in outs} == {str(6 - victim)}, about


def _ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@needs_root
@pytest.mark.parametrize("seed", range(min(SEEDS, 5)))
def test_a_host_that_disappears_is_named(seed):
    """Three hosts on one bridge, a plane each; one is removed with its namespace."""
    draw = random.Random(seed)
    name, victim = draw.choice([name for name in OPERATIONS if "halving" not in name]), 1 + draw.randrange(2)
    bridge = f"phase{os.getpid() % 10000}{seed}"
    spaces = [f"{bridge}-{rank}" for rank in range(3)]
    processes = []
    try:
        _ip("link", "add", bridge, "type", "bridge")
        _ip("link", "set", bridge, "up")
        for rank, space in enumerate(spaces):
            _ip("netns", "add", space)
            _ip("link", "add", f"{bridge}{rank}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", f"{bridge}{rank}", "master", bridge, "up")
            _ip("-n", space, "address", "add", f"10.98.0.{1 + rank}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
        # The transport gives a silent peer up after 50 s, and only then the rank is lost.
        told = {"OPERATION": OPERATIONS[name], "SIGNAL": "9", "VICTIM": str(victim), "LIMIT": "150"}
        text = "\n".join(map(textwrap.dedent, (HEAD, SCRIPT, "comm.close()")))
        for rank, job in enumerate(local_ranks(3)):
            # The moment comes from outside: the namespace goes first.
            variables = {**os.environ, **job, **told, "SHARE": "1e9" if rank else "0"}
            variables |= {"MASTER_ADDR": "10.98.0.1", "OPENMRC_ADDRESSES": f"10.98.0.{1 + rank}"}
            command = ["ip", "netns", "exec", spaces[rank], sys.executable, "-c", text]
            processes.append(
                subprocess.Popen(
                    command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
        assert processes[0].stdout.readline() == "ready\n"
        time.sleep(draw.random())
        _ip("-n", spaces[victim], "link", "delete", "eth0")
        processes[victim].kill()
        _ip("netns", "delete", spaces[victim])
        outs = finish([process for rank, process in enumerate(processes) if rank != victim])
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        subprocess.run(["ip", "link", "delete", bridge], capture_output=True)
    assert any(f"rank {victim}" in out for out in outs), outs
    assert {out.splitlines()[-1] for out in outs} == {str(3 - victim)}, outs
