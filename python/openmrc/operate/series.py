"""Bytes of a job by plane in equal steps of time, for the last hour. Pure: times are arguments."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

STEP_S = 2.0
"""As long as an agent waits between two reports of the same."""
KEPT_S = 3600.0
LEAST_COVERED_S = STEP_S / 2
"""A step with less time of hosts says nothing about their rate."""
_STEPS = int(KEPT_S / STEP_S)


class Step(NamedTuple):
    """What hosts have reported of a step."""

    begin: float
    host_seconds: float
    """Time that reports cover, of all hosts together."""
    received: Sequence[float]
    """Bytes by plane."""


@dataclass(frozen=True, slots=True)
class Level:
    """The mean rate of a host over some steps."""

    mean: float
    """Bytes a second of a host, all planes."""
    deviation: float
    """Standard deviation of the steps' means."""
    steps: int


class Series:
    """A ring of steps."""

    def __init__(self, planes: int) -> None:
        """Starts empty.

        Args:
            planes: Of the fabric.
        """
        self._planes = planes
        self._received = array("d", bytes(8 * _STEPS * planes))
        self._host_seconds = array("d", bytes(8 * _STEPS))
        self._newest = -1

    def add(self, begin: float, end: float, received: Sequence[float]) -> None:
        """Takes bytes by plane that a host has received evenly between two times."""
        first, last = int(begin // STEP_S), int(end // STEP_S)
        self._advance(last)
        for step in range(max(first, self._newest - _STEPS + 1), last + 1):
            inside = min(end, (step + 1) * STEP_S) - max(begin, step * STEP_S)
            if inside <= 0:
                continue
            place = step % _STEPS
            self._host_seconds[place] += inside
            for plane, count in enumerate(received):
                self._received[place * self._planes + plane] += count * inside / (end - begin)

    def _advance(self, step: int) -> None:
        for each in range(max(self._newest + 1, step - _STEPS + 1), step + 1):
            place = each % _STEPS
            self._host_seconds[place] = 0.0
            self._received[place * self._planes : (place + 1) * self._planes] = array(
                "d", bytes(8 * self._planes)
            )
        self._newest = max(self._newest, step)

    def between(self, begin: float, end: float) -> Iterator[Step]:
        """Yields the steps that lie between two times as a whole; those that are not kept are empty."""
        for step in range(math.ceil(begin / STEP_S), math.floor(end / STEP_S)):
            kept = self._newest - _STEPS < step <= self._newest
            place = step % _STEPS
            received = self._received[place * self._planes : (place + 1) * self._planes]
            yield Step(
                step * STEP_S,
                self._host_seconds[place] if kept else 0.0,
                received if kept else [0.0] * self._planes,
            )

    def level(self, begin: float, end: float, without: Iterable[tuple[float, float]] = ()) -> Level | None:
        """The mean rate between two times; ``None``: nothing was reported.

        Hosts that do not report neither raise nor lower it.

        Args:
            begin: The first time.
            end: The second one.
            without: Times whose steps do not count.
        """
        gaps = list(without)
        steps = [
            step
            for step in self.between(max(begin, (self._newest - _STEPS) * STEP_S), end)
            if step.host_seconds >= LEAST_COVERED_S
            and not any(step.begin < over and step.begin + STEP_S > since for since, over in gaps)
        ]
        seconds = sum(step.host_seconds for step in steps)
        if not steps:
            return None
        mean = sum(sum(step.received) for step in steps) / seconds
        squares = sum((sum(step.received) / step.host_seconds - mean) ** 2 for step in steps)
        return Level(mean, math.sqrt(squares / max(1, len(steps) - 1)), len(steps))
