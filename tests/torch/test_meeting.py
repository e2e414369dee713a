"""How the ranks of a process group meet over torch's store. `make test-torch` has torch."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.helpers import ranks
from tests.helpers.labs import needs_root
from tests.helpers.planes import address, two_hosts
from tests.helpers.torch_ranks import HEAD, TAIL, start

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

SECRET = "0123456789abcdef"


@pytest.mark.parametrize("tokens", [(SECRET, "", SECRET), (SECRET, SECRET, "another secret of 30 bytes")])
def test_a_missing_or_other_token_ends_the_start_with_both_ranks_named(tokens):
    head = f"""
        import os, torch.distributed as dist
        rank = int(os.environ["RANK"])
        os.environ["OPENMRC_TOKEN"] = {tokens!r}[rank]
        try:
            dist.init_process_group("mrc")
        except Exception as error:
            print(error)
        else:
            print("no error")
    """
    outs = ranks.finish(ranks.start("", 3, head=head, tail="os._exit(0)"))
    odd = next(rank for rank, token in enumerate(tokens) if token != SECRET)
    for rank, out in enumerate(outs):
        assert "OPENMRC_TOKEN" in out, outs
        assert f"rank {odd}" in out, outs
        assert rank == odd or "rank " in out.replace(f"rank {odd}", ""), outs


def test_ranks_with_the_same_token_meet():
    script = "x = torch.ones(3); dist.all_reduce(x); assert (x == 2).all()"
    ranks.finish(start(script, 2, OPENMRC_TOKEN=SECRET))


@needs_root
def test_two_ranks_on_each_of_two_hosts_with_two_planes():
    script = """
        x = torch.full((100_000,), rank + 1.0)
        dist.all_reduce(x)
        assert (x == 10).all()
        pair = dist.new_group([1, 2])
        if rank in (1, 2):
            x = torch.ones(3); dist.all_reduce(x, group=pair); assert (x == 2).all()
        comm = dist.group.WORLD._get_backend(torch.device("cpu")).communicator
        print(comm.local_peers, len(comm.device.addresses))
    """
    text = "\n".join(textwrap.dedent(part) for part in (HEAD, script, TAIL))
    with two_hosts(2) as hosts:
        processes = []
        for rank in range(4):
            job = {
                "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": address(0, 1), "MASTER_PORT": "29555",
                "OPENMRC_ADDRESSES": "p0,p1", "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            command = ["ip", "netns", "exec", hosts.names[1 + rank // 2], sys.executable, "-c", text]
            processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **job},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outs = ranks.finish(processes)
    assert outs == ["[1] 2\n", "[0] 2\n", "[3] 2\n", "[2] 2\n"]
