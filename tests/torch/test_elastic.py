"""Training that loses workers and takes them back; state dicts on their way. `make test-torch` has torch."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from openmrc.collectives.coordinator import Coordinator
from openmrc.transfer.receiver import Server
from openmrc.transfer.store import Store
from tests.helpers import ranks
from tests.helpers.torch_ranks import run, start

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

# --- replicas -----------------------------------------------------------------------------------------------

REPLICA = """
    import hashlib, os, signal, sys
    import torch
    from torch import nn
    from openmrc.torch.elastic import Replicas

    torch.set_num_threads(1)
    torch.manual_seed(hash(sys.argv[1]))  # A newcomer has other parameters, until it gets those of the job.
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with Replicas((sys.argv[2], int(sys.argv[3])), model, optimizer, timeout=30) as job:
        while True:
            job.begin()
            step, size = job.steps, job.size
            # In the middle of a step, and before the job has enough steps to end, however late the third is.
            if sys.argv[1] == "victim" and step >= 5 and size == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            data = torch.Generator().manual_seed(step * 100 + job.rank)
            optimizer.zero_grad()
            model(torch.randn(16, 64, generator=data)).pow(2).mean().backward()
            job.average_gradients()
            committed = job.commit()
            if committed:
                optimizer.step()
            print(step, size, flush=True)
            if committed and job.steps >= 60 and size == 3:
                break
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print("parameters", hashlib.sha256(state).hexdigest(), flush=True)
"""


def start_replica(coordinator, name):
    host, port = coordinator.address
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(REPLICA), name, host, str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_sizes(worker, *sizes):
    """Reads the worker's steps until its job has had these sizes, one after the other."""
    wanted = list(sizes)
    for line in worker.stdout:
        if int(line.split()[1]) == wanted[0]:
            wanted.pop(0)
        if not wanted:
            return
    raise AssertionError(worker.stderr.read())


def test_replicas_go_on_without_a_killed_one_and_take_it_back():
    with Coordinator(least=2) as coordinator:
        first, victim, third = [start_replica(coordinator, name) for name in ("first", "victim", "third")]
        assert victim.wait(timeout=120) == -signal.SIGKILL
        victim.communicate()
        # Two of them may have begun before the third came, so a step of two alone says nothing.
        wait_for_sizes(first, 3, 2)
        parameters = set()
        for worker in [first, third, start_replica(coordinator, "newcomer")]:
            out, err = worker.communicate(timeout=120)
            assert worker.returncode == 0, err[-3000:]
            parameters.add(out.splitlines()[-1])
    assert len(parameters) == 1


def test_torchrun_starts_all_again_when_one_is_killed(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import os, signal, sys
        import torch, torch.distributed as dist
        dist.init_process_group("mrc")
        rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        file = sys.argv[1]
        step, total = torch.load(file) if os.path.exists(file) else (0, 0.0)
        while step < 30:
            x = torch.full((5000,), float(rank + step))
            dist.all_reduce(x)
            if attempt == 0 and step == 12 and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            step, total = step + 1, total + x[0].item()
            if rank == 0 and step % 10 == 0:
                torch.save((step, total), file)
        # In one piece: the ranks share the output.
        os.write(1, f"rank {rank}, attempt {attempt}: {total}\\n".encode())
        dist.destroy_process_group()
        """)
    )
    port = ranks.free_port()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--max-restarts", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "state.pt")],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = float(sum(3 * step + 3 for step in range(30)))
    lines = sorted(line for line in done.stdout.splitlines() if "rank" in line)
    assert lines == [f"rank {rank}, attempt 1: {expected}" for rank in range(3)]


# --- checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "network"])
def test_a_state_dict_goes_from_rank_to_rank(shared):
    script = """
        from openmrc.torch import checkpoint
        import collections
        model = nn.Sequential(nn.Linear(300, 500), nn.BatchNorm1d(500))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(4, 300)).sum().backward(); optimizer.step()
        state = {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7, "name": "x",
            "half": torch.randn(3, 5).to(torch.bfloat16), "strided": torch.arange(12).view(3, 4)[:, ::2],
            "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5), "bool": torch.tensor([True, False]),
            "complex": torch.randn(2, dtype=torch.complex64), "list": [1, (torch.ones(2), None)],
        }
        if rank == 1:
            checkpoint.send(state, 0)
        elif rank == 0:
            found = checkpoint.recv(1)
            def same(a, b):
                if isinstance(a, torch.Tensor):
                    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
                if isinstance(a, dict):
                    return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
                if isinstance(a, (list, tuple)):
                    return len(a) == len(b) and all(map(same, a, b))
                return a == b
            assert same(state, found), found
            fresh = nn.Sequential(nn.Linear(300, 500), nn.BatchNorm1d(500))
            fresh.load_state_dict(found["model"])
        dist.barrier()
    """
    run(script, 3, OPENMRC_SHARED_MEMORY=shared)


def test_a_state_that_changes_on_its_way_is_refused():
    script = """
        from openmrc.torch import checkpoint
        if rank == 0:
            if os.environ["FAULT"]:
                right = checkpoint.xxhash.xxh3_128_digest
                checkpoint.xxhash.xxh3_128_digest = lambda data: right(b"other")
            checkpoint.send({"w": torch.ones(1000)}, 1)
        else:
            try:
                checkpoint.recv(0)
            except Exception as error:
                print(type(error).__name__, error)
    """
    assert "wrong checksum" in run(script, 2, FAULT="1")[1]
    assert run(script, 2, FAULT="")[1] == ""


def test_a_killed_sender_of_a_state_is_an_exception():
    script = """
        from openmrc.torch import checkpoint
        print("ready", flush=True)
        try:
            while True:
                if rank == 0:
                    checkpoint.send({"w": torch.ones(3_000_000)}, 1)
                else:
                    checkpoint.recv(0)
        except Exception as error:
            print(type(error).__name__, flush=True)
            os._exit(0)
    """
    processes = start(script, 2)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    processes[0].kill()
    processes[0].communicate()
    assert processes[1].communicate(timeout=100)[0] == "RankLostError\n"


def test_a_state_dict_goes_to_disk(tmp_path):
    from openmrc.errors import ConnectError
    from openmrc.torch import checkpoint

    state = {"w": torch.randn(1000, 333), "step": 3}
    with Store(tmp_path, sync=False) as store, Server(store, host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        report = checkpoint.save(state, "run/step3.pt", f"127.0.0.1:{server.port}")
        assert report.complete
        assert len(report.planes) == 8
        with pytest.raises(ConnectError, match="not stored"):
            checkpoint.save(state, "run/step3.pt", f"127.0.0.1:{server.port}")
    found = torch.load(tmp_path / "run/step3.pt", weights_only=True)
    assert torch.equal(found["w"], state["w"])
    assert found["step"] == 3


def test_what_cannot_be_sent_is_refused():
    script = """
        from openmrc.torch import checkpoint
        from openmrc.errors import ArgumentError
        try:
            checkpoint.send({"w": torch.ones(2, device="meta")}, 1 - rank)
        except ArgumentError as error:
            assert "meta" in str(error)
        else:
            raise AssertionError
        gloo = dist.new_group(backend="gloo")
        try:
            checkpoint.send({}, 1 - rank, group=gloo)
        except ArgumentError as error:
            assert "another backend" in str(error)
        else:
            raise AssertionError
    """
    run(script, 2)
