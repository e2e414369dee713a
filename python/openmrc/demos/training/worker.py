"""One rank: trains, and reports each step. :mod:`openmrc.demos.training.job` starts it. Needs torch."""

import datetime
import hashlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from openmrc.demos.training import text
from openmrc.demos.training.model import Batches, ByteModel, Shape, continued, loss_of
from openmrc.demos.training.settings import (
    VARIABLE,
    EndReport,
    JobSettings,
    StepReport,
    decode_rules,
    encode,
)
from openmrc.errors import ClosedError
from openmrc.testing import ImpairedNetwork
from openmrc.torch import trace
from openmrc.verbs import Context, EvState

_TIMEOUT = datetime.timedelta(seconds=120)
_LEARNING_RATE = 2e-3
_SAMPLE_BYTES = 120


class _Watch:
    """The rank's device: its planes, its broken paths, and the faults that the parent asks for."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._network = ImpairedNetwork(context)
        self._planes = len(context.addresses)
        self._out: set[tuple[int, int, int]] = set()
        self._dropped = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._obey, name="openmrc-demo-faults", daemon=True).start()

    def _obey(self) -> None:
        for line in sys.stdin:
            rules, seed = decode_rules(line)
            with self._lock, suppress(ClosedError):
                self._dropped += sum(self._network.hits())
                self._network.set(*rules, seed=seed)

    def fields(self) -> dict[str, Any]:
        """Fields of a :class:`StepReport`."""
        while (event := self._context.ev_events.poll()) is not None:
            path = (event.qp_num, event.port, event.ev)
            (self._out.add if event.state is EvState.ASSUMED_BAD else self._out.discard)(path)
        counts = Counter(port for _, port, _ in self._out)
        with self._lock:
            dropped = self._dropped + sum(self._network.hits())
        return {
            "plane_bytes": [port["tx_bytes"] for port in self._context.stats()["ports"]],
            "paths_out": [counts[plane] for plane in range(self._planes)],
            "dropped": dropped,
        }


def _wrapped(model: ByteModel, settings: JobSettings) -> nn.Module:
    if not settings.fsdp:
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _mean_of_ranks(loss: Tensor) -> float:
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return float(mean.item()) / int(dist.get_world_size())


def _digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        found.update(own.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _say(report: StepReport | EndReport) -> None:
    print(encode(report), flush=True)


def train(settings: JobSettings) -> None:
    """Trains as one rank of the default group, and writes reports to standard output."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    shape = Shape(settings.layers, settings.width)
    plain = ByteModel(shape)
    parameters = sum(parameter.numel() for parameter in plain.parameters())
    model = _wrapped(plain, settings)
    optimizer = torch.optim.AdamW(model.parameters(), _LEARNING_RATE)
    written = text.made()
    batches = Batches(written, shape, rank, settings.batch)
    watch = None
    if settings.backend == "mrc":
        watch = _Watch(dist.group.WORLD._get_backend(torch.device("cpu")).communicator.device)
    if settings.trace:
        trace.begin()
    for step in range(settings.steps):
        began = time.monotonic_ns()
        optimizer.zero_grad()
        loss = loss_of(model, *batches.next())
        loss.backward()
        optimizer.step()
        mean = _mean_of_ranks(loss)
        ended = time.monotonic_ns()
        _say(StepReport(rank, step, mean.hex(), began, ended, **(watch.fields() if watch else {})))
    if settings.trace:
        trace.write(settings.trace)
    digest = _digest(model)
    # Without the wrapper of DDP, which would communicate; with FSDP every rank does the same.
    begin = written[: shape.context // 4]
    sample = continued(plain, begin, _SAMPLE_BYTES, shape.context).decode("ascii", "replace")
    _say(EndReport(rank, digest, parameters, sample))


def main() -> int:
    """Runs one rank, configured by torch's environment variables and :data:`VARIABLE`."""
    # Ctrl-C reaches all processes of the terminal; the parent ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    settings = JobSettings.from_json(os.environ[VARIABLE])
    dist.init_process_group(settings.backend, timeout=_TIMEOUT)
    try:
        train(settings)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
