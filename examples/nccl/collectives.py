"""Collectives of torch.distributed whose results are checked, with their bus bandwidth.

    openmrc run --planes 4 -- torchrun --nproc-per-node 2 collectives.py

The backend is NCCL where there is a GPU, otherwise gloo. Numbers are small integers, so sums are exact in any
order, and a byte that is wrong anywhere shows. docs/nccl.md has what NCCL needs.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def all_reduce(data: torch.Tensor, rank: int, ranks: int) -> tuple[float, bool]:
    data.copy_((torch.arange(len(data), device=data.device) + rank) % 7)
    seconds = timed(lambda: dist.all_reduce(data), data)
    wanted = sum((torch.arange(len(data), device=data.device) + each) % 7 for each in range(ranks))
    return seconds * ranks / (2 * (ranks - 1)), bool((data == wanted).all())


def all_gather(data: torch.Tensor, rank: int, ranks: int) -> tuple[float, bool]:
    part = len(data) // ranks
    mine = torch.full((part,), float(rank + 1), device=data.device)
    seconds = timed(lambda: dist.all_gather_into_tensor(data[: part * ranks], mine), data)
    wanted = torch.arange(1, ranks + 1, device=data.device).repeat_interleave(part)
    return seconds * ranks / (ranks - 1), bool((data[: part * ranks] == wanted).all())


def broadcast(data: torch.Tensor, rank: int, ranks: int) -> tuple[float, bool]:
    data.fill_(-1)
    if rank == 0:
        data.copy_(torch.arange(len(data), device=data.device) % 11)
    seconds = timed(lambda: dist.broadcast(data, 0), data)
    return seconds, bool((data == torch.arange(len(data), device=data.device) % 11).all())


def timed(operation: Callable[[], object], data: torch.Tensor) -> float:
    """Seconds that an operation takes, all ranks having begun it together."""
    dist.barrier()
    begun = time.perf_counter()
    operation()
    if data.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    options.add_argument("--most", type=int, default=64 << 20, help="Largest buffer, bytes.")
    options.add_argument("--times", type=int, default=5, help="Runs of each; the median is printed.")
    given = options.parse_args()

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if given.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # Two ranks of one GPU have to look like two hosts; and so they use the network.
        os.environ.setdefault("NCCL_HOSTID", f"rank{rank}")
    dist.init_process_group(given.backend)

    wrong = 0
    size = 1 << 10
    while size <= given.most:
        data = torch.empty(size // 4, device=device)
        for operation in (all_reduce, all_gather, broadcast):
            runs = [operation(data, rank, ranks) for _ in range(given.times)]
            right = torch.tensor(float(all(ok for _, ok in runs)), device=device)
            dist.all_reduce(right, dist.ReduceOp.MIN)
            wrong += right.item() < 1
            if rank == 0:
                seconds = sorted(took for took, _ in runs)[len(runs) // 2]
                shown = "right" if right.item() == 1 else "WRONG"
                print(f"{operation.__name__:>10} {size:>10} bytes {size / seconds / 1e9:8.3f} GB/s  {shown}")
        size *= 8
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
