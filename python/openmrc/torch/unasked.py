"""What torch 2.15 does not ask a backend in Python for, and this package answers all the same.

A work of ours reaches Python in a holder of torch's, which passes on ``wait`` and ``get_future`` only: its
``is_completed`` is always false, and it has no source. The methods that are replaced here find our work
behind a holder by asking for its future. Works of other backends answer for themselves.
"""

import threading
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType, Work
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from openmrc.torch.work import MrcWork

_UNKNOWN = int(OpType.UNKNOWN)
_looking = threading.local()
_installed = False


class Answered(MrcWork):
    """A work that can be found behind its holder."""

    def get_future(self) -> Any:
        """As :meth:`MrcWork.get_future`; tells who asks by :func:`_behind` whose future it is."""
        if getattr(_looking, "on", False):
            _looking.found = self
            return _NO_FUTURE
        return super().get_future()


_NO_FUTURE: Future[Any] = Future()


def _behind(work: Work) -> Answered | None:
    """Our work in a holder, or the work itself if it is ours; ``None`` for those of other backends."""
    if isinstance(work, Answered):
        return work
    if work._get_op_type() != _UNKNOWN:  # Torch's own backends say what their works are.
        return None
    _looking.on, _looking.found = True, None
    try:
        work.get_future()
    except RuntimeError:  # A work without a future.
        return None
    finally:
        _looking.on = False
    found, _looking.found = _looking.found, None
    return found if isinstance(found, Answered) else None


def _replace(name: str, answer: Any) -> None:
    original = getattr(Work, name)

    def method(self: Work) -> Any:
        ours = _behind(self)
        return original(self) if ours is None else answer(ours)

    method.__name__, method.__doc__ = name, original.__doc__
    setattr(Work, name, method)


def _source(work: Answered) -> int:
    source = work.source
    if source is None:
        raise RuntimeError("the source is known of a receive from any rank, once it has ended")
    return source


def install() -> None:
    """Replaces the methods, once in a process."""
    global _installed
    if _installed:
        return
    _installed = True
    _replace("is_completed", lambda work: work.done)
    _replace("is_success", lambda work: work.done and work.error is None)
    _replace("exception", lambda work: work.error)
    _replace("source_rank", _source)
    _replace("_source_rank", _source)
    _replace("result", lambda work: list(work.tensors) if work.done else [])
    _replace_builtin_hooks()
    _replace_split()


def _replace_builtin_hooks() -> None:
    """DDP's built-in hook for float16 needs a future that only C++ can make; that in Python does not."""
    original = DistributedDataParallel._register_builtin_comm_hook

    def register(self: DistributedDataParallel, comm_hook_type: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        backend = self.process_group._get_backend(torch.device(self.device_type))
        if backend.name() == "mrc" and comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS:
            self.register_comm_hook(self.process_group, fp16_compress_hook)
        else:
            original(self, comm_hook_type)

    DistributedDataParallel._register_builtin_comm_hook = register


def _replace_split() -> None:
    """Ranks outside a split get no part of it; torch crashes on a ``None`` of a backend in Python."""
    original = dist.ProcessGroup.split_group

    def split_group(self: dist.ProcessGroup, ranks: list[int], *rest: Any, **options: Any) -> Any:
        if self.rank() in ranks:
            return original(self, ranks, *rest, **options)
        devices = options.get("device_types") or self._device_types
        others = [device for device in devices if self._get_backend(device).name() != "mrc"]
        if not others:
            return None
        return original(self, ranks, *rest, **{**options, "device_types": others})

    split_group.__doc__ = original.__doc__
    dist.ProcessGroup.split_group = split_group
