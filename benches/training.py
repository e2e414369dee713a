"""Measures torch.distributed over mrc and over gloo in turns, in the same processes.

    python benches/training.py 2          # two ranks of this machine; prints one JSON object

Needs torch: `make test-torch` makes an environment that has it. Also called by ``make bench``.
"""

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from job import run
from openmrc.demos.training import text
from openmrc.demos.training.model import Batches, ByteModel, Shape, loss_of
from openmrc.demos.training.settings import JobSettings

_LARGE = 25_000_000
_SMALL = 4096
_EXCHANGED = 4_000_000
_TURNS = 5
_STEPS = 20
"""Steps of training in a row: in the first ones after a change the ranks are not in step yet."""


def in_turns(calls: dict[str, Callable[[], Any]], count: int, warmup: int) -> dict[str, float]:
    """Median time of a call of each kind, microseconds, over blocks that take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(warmup):
            call()
    for _ in range(_TURNS):
        for name, call in calls.items():
            dist.barrier()
            for _ in range(count):
                began = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - began) * 1e6)
    return {name: median(found) for name, found in times.items()}


def all_reduce(groups: dict[str, Any], nbytes: int, count: int) -> dict[str, float]:
    """Times of an all_reduce of float32."""
    data = torch.zeros(nbytes // 4)

    def calls(group: Any) -> Callable[[], Any]:
        return lambda: dist.all_reduce(data, group=group)

    return in_turns({name: calls(group) for name, group in groups.items()}, count, 3)


def all_to_all(groups: dict[str, Any], nbytes: int, count: int) -> dict[str, float]:
    """Times of an exchange in which each rank gives ``nbytes`` to each."""
    size = nbytes // 4 * dist.get_world_size()
    source, target = torch.ones(size), torch.empty(size)

    def calls(group: Any) -> Callable[[], Any]:
        return lambda: dist.all_to_all_single(target, source, group=group)

    return in_turns({name: calls(group) for name, group in groups.items()}, count, 3)


def ddp_step(groups: dict[str, Any], count: int) -> dict[str, float]:
    """Times of a training step of the demonstration's model; ``none``: DDP whose all_reduce does nothing."""
    settings = JobSettings()
    shape = Shape(settings.layers, settings.width)
    batches = Batches(text.made(), shape, dist.get_rank(), settings.batch)

    def nothing(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def calls(group: Any) -> Callable[[], Any]:
        torch.manual_seed(1)
        model = torch.nn.parallel.DistributedDataParallel(ByteModel(shape), process_group=group)
        if group is None:
            model.register_comm_hook(None, nothing)
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3)

        def step() -> None:
            optimizer.zero_grad()
            loss_of(model, *batches.next()).backward()
            optimizer.step()

        return step

    return in_turns({name: calls(group) for name, group in {**groups, "none": None}.items()}, count, 3)


def measure() -> dict[str, float]:
    """All measurements of one rank; every rank calls it."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    groups = {"gloo": dist.group.WORLD, "mrc": dist.new_group(backend="mrc")}
    found = {
        "all_reduce_large": all_reduce(groups, _LARGE, 4),
        "all_reduce_small": all_reduce(groups, _SMALL, 200),
    }
    if ranks == 4:
        found["all_to_all"] = all_to_all(groups, _EXCHANGED, 4)
        found["ddp_step"] = ddp_step(groups, _STEPS)
    dist.destroy_process_group()
    return {f"{name}_{backend}_us": us for name, times in found.items() for backend, us in times.items()}


if __name__ == "__main__":
    sys.exit(run(measure, int(sys.argv[1])))
