"""The whole demo: a lab, one half or both, and nothing left behind."""

import fcntl
import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from openmrc.errors import StateError
from openmrc.lab import Lab, system
from openmrc.lab.demo import conventional, frr, mrc
from openmrc.lab.demo.report import Progress
from openmrc.lab.demo.scene import NAME, fabric, schedule
from openmrc.lab.demo.trace import Half
from openmrc.lab.lab import remove
from openmrc.lab.state import ROOT, names

Only = Literal["mrc", "frr"]


@dataclass(frozen=True)
class Settings:
    """What a user chooses."""

    only: Only | None = None
    duration: float = 30.0
    """Seconds that the faults of each half take."""
    rate_bps: float = 40e6
    """What each host offers: small enough that two processors forward it all."""
    srv6: bool = False
    """Whether NICs build SRv6 frames themselves, or send over UDP sockets."""
    timers: frr.Timers = field(default_factory=frr.Timers)


@dataclass(frozen=True)
class Outcome:
    """What the halves have measured; ``None``: it did not run."""

    mrc: Half | None
    conventional: Half | None
    remark: str | None
    """Why a half did not run."""


def run(settings: Settings, progress: Progress) -> Outcome:
    """Brings the lab up, runs what is asked for, and takes it down whatever happens.

    Raises:
        PrivilegeError: without root.
        UnsupportedError: if only the conventional half was asked for and FRR is missing.
        StateError: if the demo runs already.
        DeviceError: if the kernel or FRR refuse something.
        Error: if a queue pair or a connection broke.
    """
    system.require_root()
    missing = frr.why_not() if settings.only != "mrc" else None
    if missing and settings.only == "frr":
        raise StateError(missing)
    with _alone(), _ended_by_signals():
        progress.half = "lab"
        lab = Lab.up(fabric(), progress=progress.say)
        # A collection of all that was measured takes tens of milliseconds, in which nothing would be sent.
        gc.disable()
        try:
            faults = schedule(settings.duration)
            source_routed = routed = None
            if settings.only != "frr":
                progress.half = "MRC"
                source_routed = mrc.run(
                    lab, faults, settings.rate_bps, progress.say, progress.tick, srv6=settings.srv6
                )
            if settings.only != "mrc" and not missing:
                progress.half = "FRR"
                routed = conventional.run(
                    lab, faults, settings.rate_bps, settings.timers, progress.say, progress.tick
                )
        finally:
            gc.enable()
            # A second ctrl-C must not leave half of it behind.
            with _undisturbed():
                lab.down()
    remark = f"the half with BGP did not run: {missing}" if missing else None
    return Outcome(source_routed, routed, remark)


@contextmanager
def _alone() -> Iterator[None]:
    """One demo at a time; what one that was killed has left behind is removed."""
    ROOT.mkdir(parents=True, exist_ok=True)
    with (ROOT / f"{NAME}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError("the demo runs already; one at a time") from None
        if NAME in names():
            remove(NAME)
        yield


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end it like ctrl-C: with the lab taken down."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
