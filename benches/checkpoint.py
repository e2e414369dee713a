"""A state dict from one rank to another: by openmrc, and by torch.save, a copy over TCP and torch.load.

    python benches/checkpoint.py          # two ranks of this machine; prints one JSON object

The copy is what scp does, without its encryption: the file is read, sent over one connection, and written.
Files lie in the directory for temporary files. Needs torch. Also called by ``make bench``.
"""

import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from job import run
from openmrc.torch import checkpoint

_TENSORS, _ELEMENTS = 16, 4 << 20
"""256 MiB of float32."""
_TURNS = 3
_PIECE = 1 << 20


def state(fill: float) -> dict[str, torch.Tensor]:
    """A state dict."""
    return {f"layer{i}.weight": torch.full((_ELEMENTS,), fill + i) for i in range(_TENSORS)}


def by_checkpoint(rank: int) -> None:
    """Rank 0 sends, and rank 1 has it."""
    if rank == 0:
        checkpoint.send(state(1.0), 1)
    else:
        found = checkpoint.recv(0)
        assert float(found["layer3.weight"][-1]) == 4.0


def by_file(rank: int, directory: Path, listener: socket.socket | None, port: int) -> None:
    """Rank 0 saves and copies, and rank 1 loads."""
    if rank == 0:
        path = directory / "sent.pt"
        torch.save(state(1.0), path)
        with socket.create_connection(("127.0.0.1", port)) as tcp, path.open("rb") as file:
            tcp.sendfile(file)
        return
    assert listener is not None
    path = directory / "received.pt"
    tcp, _ = listener.accept()
    piece = bytearray(_PIECE)
    with tcp, path.open("wb") as file:
        while count := tcp.recv_into(piece):
            file.write(memoryview(piece)[:count])
    found = torch.load(path)
    assert float(found["layer3.weight"][-1]) == 4.0


def timed(call: Callable[[], None]) -> float:
    """Seconds until both ranks have ended."""
    dist.barrier()
    began = time.perf_counter()
    call()
    dist.barrier()
    return time.perf_counter() - began


def measure() -> dict[str, float]:
    """Both, in turns, at one of the two ranks."""
    torch.set_num_threads(1)
    dist.init_process_group("mrc")
    rank = dist.get_rank()
    listener = socket.create_server(("127.0.0.1", 0)) if rank == 1 else None
    port = torch.tensor([listener.getsockname()[1] if listener else 0])
    dist.broadcast(port, 1)
    times: dict[str, list[float]] = {"mrc_s": [], "file_s": []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(_TURNS):
            times["mrc_s"].append(timed(lambda: by_checkpoint(rank)))
            times["file_s"].append(timed(lambda: by_file(rank, Path(directory), listener, int(port))))
    dist.destroy_process_group()
    return {name: median(found) for name, found in times.items()}


if __name__ == "__main__":
    sys.exit(run(measure, 2))
