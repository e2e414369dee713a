"""The whole demo: a lab, one run or both, and nothing left behind."""

import fcntl
import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from openmrc.demos.lab import conventional, frr, mrc
from openmrc.demos.lab.recording import Recording
from openmrc.demos.lab.report import Progress
from openmrc.demos.lab.scene import NAME, fabric, schedule
from openmrc.errors import StateError
from openmrc.lab import Lab, system
from openmrc.lab.lab import remove
from openmrc.lab.state import ROOT, names

Only = Literal["mrc", "frr"]


@dataclass(frozen=True)
class Settings:
    """What a user chooses."""

    only: Only | None = None
    duration: float = 30.0
    """Seconds that the faults of each run take."""
    rate_bps: float = 40e6
    """What each host offers: little enough that two processors can forward it all."""
    srv6: bool = False
    """Whether the NICs build SRv6 frames themselves or send over UDP sockets."""
    timers: frr.Timers = field(default_factory=frr.Timers)


@dataclass(frozen=True)
class Outcome:
    """What the runs have measured; ``None``: it did not run."""

    mrc: Recording | None
    conventional: Recording | None
    remark: str | None
    """Why one did not run."""


def run(settings: Settings, progress: Progress) -> Outcome:
    """Brings the lab up, runs what is asked for, and always takes it down.

    Raises:
        PrivilegeError: without root.
        StateError: if the demo runs already, or only the conventional run was asked for and FRR is missing.
        DeviceError: if the kernel or FRR refuses something.
        Error: if a queue pair or a connection broke.
    """
    system.require_root()
    missing = frr.why_not() if settings.only != "mrc" else None
    if missing and settings.only == "frr":
        raise StateError(missing)
    progress.phase = "lab"
    with demo_lab(progress.log) as lab:
        # A garbage collection over all samples takes tens of milliseconds, in which nothing would be sent.
        gc.disable()
        try:
            faults = schedule(settings.duration)
            source_routed = routed = None
            if settings.only != "frr":
                progress.phase = "MRC"
                source_routed = mrc.run(
                    lab, faults, settings.rate_bps, progress.log, progress.tick, srv6=settings.srv6
                )
            if settings.only != "mrc" and not missing:
                progress.phase = "FRR"
                routed = conventional.run(
                    lab, faults, settings.rate_bps, settings.timers, progress.log, progress.tick
                )
        finally:
            gc.enable()
    remark = f"the run with BGP was left out: {missing}" if missing else None
    return Outcome(source_routed, routed, remark)


@contextmanager
def demo_lab(log: Callable[[str], None]) -> Iterator[Lab]:
    """The lab of a demo: one at a time, and always taken down.

    Args:
        log: Called with the name of each step.

    Raises:
        PrivilegeError: without root.
        StateError: if a demo runs already.
        DeviceError: if the kernel refuses something.
    """
    system.require_root()
    # SIGTERM and a closed terminal end the demo as Ctrl-C does: the lab is taken down.
    with _alone(), _handling(_interrupt, signal.SIGTERM, signal.SIGHUP):
        lab = Lab.up(fabric(), progress=log)
        try:
            yield lab
        finally:
            # A second Ctrl-C must not leave half of the lab behind.
            with _handling(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                lab.down()


@contextmanager
def _alone() -> Iterator[None]:
    """One demo at a time; removes what a killed demo has left behind."""
    ROOT.mkdir(0o755, parents=True, exist_ok=True)
    with (ROOT / f".{NAME}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError("the demo is running already; one at a time is possible") from None
        if NAME in names():
            remove(NAME)
        yield


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _handling(handler: Callable[..., None] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Signals have this handler."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
