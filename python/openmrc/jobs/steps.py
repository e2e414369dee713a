"""Step functions of time: how many outages overlap, and the worst part at each time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openmrc.jobs.draw import Floats, Ints


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of time that do not overlap, in order; seconds."""

    begin: Floats
    end: Floats

    def steps(self) -> "Steps":
        """1 inside, 0 outside."""
        times = np.concatenate([[0.0], np.column_stack([self.begin, self.end]).ravel()])
        values = np.zeros(len(times))
        values[1::2] = 1.0
        return Steps(times, values)


def union(begin: Floats, end: Floats) -> Spans:
    """Spans that cover the same times as these, which may overlap in any order."""
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    if not len(begin):
        return Spans(begin, end)
    reached = np.maximum.accumulate(end)
    first = np.concatenate([[True], begin[1:] > reached[:-1]])
    last = np.concatenate([np.flatnonzero(first)[1:] - 1, [len(begin) - 1]])
    return Spans(begin[first], reached[last])


@dataclass(frozen=True, slots=True)
class Steps:
    """A function that is constant between some times, the first of which is 0."""

    times: Floats
    values: Floats

    def at(self, times: Floats) -> Floats:
        """Its values just after these times."""
        found: Floats = self.values[np.searchsorted(self.times, times, side="right") - 1]
        return found


def common(functions: Sequence[Steps], until: float) -> Floats:
    """All times before ``until`` at which one of them changes, and 0."""
    times = np.unique(np.concatenate([[0.0], *(each.times for each in functions)]))
    return times[times < until]


def _changes(part: Ints, begin: Floats, end: Floats) -> tuple[Ints, Floats, Floats, Floats]:
    """Parts and times of all begins and ends, by part and time; +1 or -1; outages that a part has then."""
    parts = np.concatenate([part, part])
    times = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(part)), -np.ones(len(part))])
    # At one time the ends come first: an outage that begins as another ends does not overlap it.
    order = np.lexsort((change, times, parts))
    change = change[order]
    # All changes of a part add up to 0, so that one sum counts within every part.
    return parts[order], times[order], change, np.cumsum(change)


def apart(part: Ints, begin: Floats, end: Floats) -> tuple[Ints, Floats, Floats]:
    """The same times as outages of which none overlaps another of its part."""
    parts, times, change, level = _changes(part, begin, end)
    rises = (change > 0) & (level == 1)
    falls = (change < 0) & (level == 0)
    return parts[rises], times[rises], times[falls]


def levels(part: Ints, begin: Floats, end: Floats) -> list[Spans]:
    """Where one part or more has at least one, two, ... overlapping outages.

    Args:
        part: Which part each outage is of.
        begin: Seconds.
        end: Seconds.
    """
    _, times, change, level = _changes(part, begin, end)
    found = []
    for number in range(1, int(level.max(initial=0)) + 1):
        rises = times[(change > 0) & (level == number)]
        falls = times[(change < 0) & (level == number - 1)]
        found.append(union(rises, falls))
    return found


def worst(part: Ints, begin: Floats, end: Floats) -> Steps:
    """The most outages that overlap at one part, at each time."""
    spans = levels(part, begin, end)
    times = np.concatenate([[0.0], *(each.begin for each in spans), *(each.end for each in spans)])
    change = np.concatenate(
        [[0.0], *(np.ones(len(each.begin)) for each in spans), *(-np.ones(len(each.end)) for each in spans)]
    )
    order = np.argsort(times, kind="stable")
    return Steps(times[order], np.cumsum(change[order]))
