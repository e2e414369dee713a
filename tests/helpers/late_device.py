"""An accelerator that computes nothing until somebody waits for it: a judge of the order of streams.

Its tensors have the device ``privateuseone:0`` and an inner tensor in main memory. Copies that need not block
are only noted on the current stream. They happen when an event behind them, or the stream, is waited for: as
late as a real accelerator may do it.
"""

import threading

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from openmrc.torch import work

DEVICE = torch.device("privateuseone:0")
COPY = torch.ops.aten.copy_.default


class Stream:
    """Work in the order in which it was given, none of it done before it must be."""

    def __init__(self):
        self.work = []
        self.done = 0
        self.lock = threading.RLock()

    def give(self, work):
        with self.lock:
            self.work.append(work)
            return len(self.work)

    def run(self, until):
        if self.done < until:
            GATE.wait()
        with self.lock:
            while self.done < until:
                self.done += 1
                self.work[self.done - 1]()

    def synchronize(self):
        self.run(len(self.work))


GATE = threading.Event()
"""While it is not set the accelerator stands still."""
GATE.set()


class Event:
    """As :class:`torch.Event`, of a :class:`Stream`."""

    def __init__(self, device):
        self.device = device
        self.behind = None

    def record(self, stream):
        self.behind = (stream, len(stream.work))

    def synchronize(self):
        stream, until = self.behind
        stream.run(until)

    def wait(self, stream):
        stream.give(self.synchronize)


class Late(torch.Tensor):
    """A tensor of the accelerator."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=DEVICE
        )

    def __init__(self, inner):
        self.inner = inner

    def record_stream(self, stream):
        pass

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def inner(value):
            return value.inner if isinstance(value, Late) else value

        def outer(value):
            return Late(value) if isinstance(value, torch.Tensor) else value

        kwargs = kwargs or {}
        plain_args, plain_kwargs = tree_map(inner, args), tree_map(inner, kwargs)
        if func is COPY and len(args) > 2 and args[2]:
            target, source = plain_args[:2]
            current().give(lambda: target.copy_(source))
            return args[0]
        if not func.is_view:
            current().synchronize()
        if func is COPY:
            plain_args[0].copy_(plain_args[1])
            return args[0]
        return tree_map(outer, func(*plain_args, **plain_kwargs))


class Future(torch.futures.Future):
    """A future that asks no driver for streams: who waits for it synchronizes all of them."""

    def __init__(self, *, devices=None):
        super().__init__()


_streams = threading.local()
_all = []


def current():
    """The stream of the thread that calls."""
    if not hasattr(_streams, "own"):
        _streams.own = Stream()
        _all.append(_streams.own)
    return _streams.own


def synchronize():
    """Ends all that was given to any thread's stream."""
    for stream in list(_all):
        stream.synchronize()


def install():
    """Makes it the accelerator of this process, as far as the backend asks for one."""
    _setup_privateuseone_for_python_backend()
    empty = torch.empty
    torch.accelerator.current_accelerator = lambda: torch.device("privateuseone")
    torch.accelerator.current_stream = lambda device: current()
    torch.Event = Event
    torch.empty = lambda *shape, pin_memory=False, **options: empty(*shape, **options)
    work.Future = Future
