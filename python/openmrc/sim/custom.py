"""What your own path selector or congestion controller looks like.

Any class with these methods will do, derived from these or not. One object is made for each queue pair.

>>> class RoundRobin:
...     def __init__(self, ports, seed):
...         self.ports, self.next = ports, seed
...     def select(self, now_ps, free, avoid):
...         for _ in self.ports:
...             self.next = (self.next + 1) % len(self.ports)
...             if free >> self.ports[self.next] & 1:
...                 return self.next
...     def acked(self, path): ...
...     def congested(self, path): ...
...     def lost(self, path): ...

``sim.run(scenario, path_selector=RoundRobin)`` then uses it in place of MRC's EV states. An exception of a
method ends the run, and ``run`` raises it.

A transport that names the class does so in ``compare``, sweeps and scenario files too:
``mrc:path_selector=own_classes.RoundRobin``. The module is looked for beside the scenario's file, in the
current directory, and where Python imports from. A scenario that names a class runs the code of its module.
"""

import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from openmrc.errors import ArgumentError
from openmrc.sim.scenario import Mrc, Scenario, Uet


class PathSelector(Protocol):
    """Chooses the path of each packet. It is made with the port of each path and the queue pair's seed."""

    def __init__(self, ports: Sequence[int], seed: int) -> None: ...

    def select(self, now_ps: int, free: int, avoid: int | None) -> int | None:
        """The path of the next packet: an index of ``ports``.

        Args:
            now_ps: Virtual time, picoseconds.
            free: Ports that can take a packet now, one bit for each. The path's port must be one of them.
            avoid: For a retransmission, the path that lost the packet.

        Returns:
            ``None`` to send nothing until feedback arrives.
        """

    def acked(self, path: int) -> None:
        """A packet sent on this path has arrived."""

    def congested(self, path: int) -> None:
        """A packet on this path was ECN-marked or trimmed."""

    def lost(self, path: int) -> None:
        """A packet on this path was lost, not trimmed."""


class Congestion(Protocol):
    """Limits what a queue pair has in flight.

    It is made with a packet's size, a host's rate and the base RTT.
    """

    window: float
    """Bytes that may be in flight; read after every call. A value below one packet counts as one packet. The
    simulator sets it too, when the receiver slows its senders down."""

    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None: ...

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
        """A SACK has arrived.

        Args:
            now_ps: Virtual time, picoseconds.
            newly: Bytes that it acknowledges for the first time.
            rtt_ps: Round-trip time of the packet that asked for it, if it is certain.
            ecn: Whether that packet was marked.
        """

    def on_trim(self, now_ps: int, size: int) -> None:
        """A packet of ``size`` bytes was trimmed."""

    def on_loss(self, now_ps: int, size: int) -> None:
        """A packet of ``size`` bytes is considered lost."""


@dataclass(frozen=True)
class OwnClasses:
    """The classes that a scenario names; ``None`` for MRC's or UET's own."""

    path_selector: Callable[[Sequence[int], int], PathSelector] | None = None
    congestion: Callable[[int, int, int], Congestion] | None = None


def named_by(scenario: Scenario) -> OwnClasses:
    """Imports the classes that the transport of a scenario names.

    Raises:
        ArgumentError: if there is no such module or class, naming the field and its line.
    """
    transport = scenario.transport
    if not isinstance(transport, Mrc | Uet):
        return OwnClasses()
    return OwnClasses(**{field: _class(scenario, field, name) for field, name in _names(transport)})


def fingerprint(scenario: Scenario) -> str:
    """A hash of the source of the classes that a scenario names; empty if it names none."""
    own = named_by(scenario)
    classes = [each for each in (own.path_selector, own.congestion) if each is not None]
    return " ".join(_digest(sys.modules[each.__module__]) for each in classes)


def _names(transport: Mrc | Uet) -> list[tuple[str, str]]:
    fields = ("path_selector", transport.path_selector), ("congestion", transport.congestion)
    return [(field, name) for field, name in fields if name is not None]


def _class(scenario: Scenario, field: str, name: str) -> Any:
    place = scenario.place("transport", field)
    module, dot, attribute = name.rpartition(".")
    if not dot or not all(part.isidentifier() for part in name.split(".")):
        raise ArgumentError(f"{place}: {name!r} is not of the form module.Class")
    try:
        with _importing_from(scenario.beside, Path()):
            found = getattr(_up_to_date(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"{place}: {name}: there is no module {error.name}") from None
    except Exception as error:
        raise ArgumentError(f"{place}: {name}: {module} raises {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise ArgumentError(f"{place}: {name}: {module} has no class {attribute}")
    return found


_digests: dict[str, str] = {}
"""Of the source of each module when it was imported here."""


def _up_to_date(name: str) -> ModuleType:
    """The module; executed again if its source has changed, as in a notebook or a worker that lives on."""
    module = importlib.import_module(name)
    digest = _digest(module)
    if _digests.setdefault(name, digest) != digest:
        # Not `reload`: it takes a compiled file of the same second and size for the new source.
        source = Path(inspect.getfile(module))
        exec(compile(source.read_bytes(), source, "exec"), vars(module))
        _digests[name] = digest
    return module


def _digest(module: ModuleType) -> str:
    try:
        return hashlib.sha256(Path(inspect.getfile(module)).read_bytes()).hexdigest()
    except (TypeError, OSError):  # A part of Python, or a module that was never a file.
        return ""


@contextmanager
def _importing_from(*directories: Path) -> Iterator[None]:
    """Modules may lie in these directories too, after all others."""
    added = [str(directory.resolve()) for directory in directories]
    sys.path.extend(added)
    try:
        yield
    finally:
        for each in added:
            sys.path.remove(each)
