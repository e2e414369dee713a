"""torchft over MRC: its own tests, and a replica that dies and comes back. `make test-torch` has torchft."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.helpers.repository import ROOT

pytest.importorskip("torchft", reason="torchft is not installed (make test-torch)")

from torchft.coordination import LighthouseServer

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHFT_USE_OTEL": "false"}

REPLICA = """
    import hashlib, os, signal, sys, time
    from datetime import timedelta
    import torch, torch.distributed as dist, torch.nn as nn
    import torchft
    from torchft.optim import OptimizerWrapper
    from openmrc.torch.torchft import DistributedDataParallel, ProcessGroupMrc

    name, lighthouse = sys.argv[1:]
    torch.manual_seed(hash(name))  # Each begins with other parameters, until it gets those of the first.
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def load(state):
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=ProcessGroupMrc(timedelta(seconds=20)), load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=2, use_async_quorum=False, rank=0, world_size=1, replica_id=name,
        store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse, hostname="localhost",
        timeout=timedelta(seconds=20),
    )
    wrapped, optimizing = DistributedDataParallel(manager, model), OptimizerWrapper(manager, optimizer)
    while True:
        optimizing.zero_grad()
        loss = wrapped(torch.randn(8, 16)).pow(2).mean()
        step, size = manager.current_step(), manager.num_participants()
        if name == "victim" and size == 3 and step >= 3:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        optimizing.step()
        print(step, size, flush=True)
        time.sleep(0.02)  # So that few steps pass until the newcomer has started.
        if manager.current_step() > max(step, 20) and size == 3:  # Counted, and without the victim.
            break
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("parameters", hashlib.sha256(state).hexdigest(), flush=True)
    manager.shutdown()
"""


def test_torchfts_own_tests_of_process_groups():
    command = [sys.executable, str(ROOT / "tests" / "helpers" / "torchft_own_tests.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=250)
    assert done.returncode == 0, done.stderr[-4000:]


@contextlib.contextmanager
def replica(name, lighthouse, folder):
    """A process of a replica; its log, of which torchft writes more than a pipe holds, is a file."""
    command = [sys.executable, "-c", textwrap.dedent(REPLICA), name, lighthouse.address()]
    with (folder / name).open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=ENVIRONMENT)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def wait_for_sizes(process, *sizes):
    """Reads the steps of a replica until the group has had these sizes, one after the other."""
    wanted = list(sizes)
    for line in process.stdout:
        if int(line.split()[1]) == wanted[0]:
            wanted.pop(0)
        if not wanted:
            return
    raise AssertionError(f"the group has not had {wanted[0]} replicas")


def parameters(process, log):
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, log.read_text()[-3000:]
    return out.splitlines()[-1]


def test_the_manager_goes_on_without_a_killed_replica_and_takes_it_back(tmp_path):
    lighthouse = LighthouseServer("127.0.0.1:0", 2, join_timeout_ms=500, heartbeat_timeout_ms=1000)
    with (
        replica("first", lighthouse, tmp_path) as first,
        replica("victim", lighthouse, tmp_path) as victim,
        replica("third", lighthouse, tmp_path) as third,
    ):
        victim.communicate(timeout=200)
        assert victim.returncode == -signal.SIGKILL, (tmp_path / "victim").read_text()[-3000:]
        # Two of them may have begun before the last came, so a step of two alone says nothing.
        wait_for_sizes(first, 3, 2)
        with replica("newcomer", lighthouse, tmp_path) as newcomer:
            ended = {"first": first, "third": third, "newcomer": newcomer}
            assert len({parameters(ended[name], tmp_path / name) for name in ended}) == 1
    lighthouse.shutdown()
