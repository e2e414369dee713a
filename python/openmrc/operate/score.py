"""What a controller named when, rightly or wrongly, of faults that somebody has injected. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from openmrc.localise import Component, Kind
from openmrc.operate.model import NamedFault
from openmrc.tables import Table
from openmrc.units import duration

LINGERS_S = 8.0
"""After a fault has ended: reports count as evidence for five seconds, and one may be on its way."""


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was made."""

    component: Component
    loss: float
    """Share of packets lost, 0 to 1."""
    began: float
    """Seconds since 1970."""
    ended: float | None = None
    """The same; ``None``: it lasts."""
    title: str = ""
    """What people call it."""

    def at(self, time: float) -> bool:
        """Whether what is named at a time, seconds since 1970, may be this fault."""
        return self.began <= time and (self.ended is None or time <= self.ended + LINGERS_S)


@dataclass(frozen=True, slots=True)
class Row:
    """What became of an injected fault."""

    injected: Injected
    outcome: str
    """``right``: named; ``suspected``: one of several that the controller suspected; ``missed``;
    ``not yet``: it was neither, and has not ended."""
    after_s: float | None
    """From its beginning until it was named, or suspected; ``None``: it was neither."""


@dataclass(frozen=True, slots=True)
class Score:
    """What was named when."""

    rows: list[Row]
    """In the order in which the faults began."""
    wrong: list[NamedFault]
    """What was named, or suspected, though it was whole."""


def score(injected: Iterable[Injected], named: Iterable[NamedFault]) -> Score:
    """Compares what was injected with what a controller named.

    A link and one direction of it are the same part. A component that is named within ``LINGERS_S`` of its
    repair counts as named. Faults that were open before the first injection are left out.

    Args:
        injected: The faults that were made.
        named: Faults of the controller, open and over.
    """
    made = sorted(injected, key=lambda each: each.began)
    since = made[0].began if made else float("inf")
    faults = sorted((each for each in named if each.since >= since), key=lambda each: each.since)
    rows = [_row(each, faults) for each in made]
    wrong = [
        fault
        for fault in faults
        if not any(each.at(fault.since) and each.component.part in _accused(fault) for each in made)
    ]
    return Score(rows, wrong)


def _row(injected: Injected, faults: Sequence[NamedFault]) -> Row:
    part = injected.component.part
    found = [each for each in faults if injected.at(each.since) and part in _accused(each)]
    right = [each for each in found if each.kind != "unknown"]
    for outcome, group in (("right", right), ("suspected", found)):
        if group:
            return Row(injected, outcome, group[0].since - injected.began)
    return Row(injected, "missed" if injected.ended is not None else "not yet", None)


def _accused(fault: NamedFault) -> set[tuple[str, str]]:
    if fault.kind != "unknown":
        return {Component(Kind(fault.kind), fault.name).part}
    return {Component(Kind(each.kind), each.name).part for each in fault.suspects}


def as_dict(found: Score) -> dict[str, Any]:
    """A score, for JSON; times in seconds."""
    return {
        "faults": [
            {
                "title": row.injected.title,
                "kind": str(row.injected.component.kind),
                "name": row.injected.component.name,
                "loss": row.injected.loss,
                "began": row.injected.began,
                "ended": row.injected.ended,
                "outcome": row.outcome,
                "after_s": row.after_s,
            }
            for row in found.rows
        ],
        "wrong": [
            {"kind": each.kind, "name": each.name, "since": each.since, "until": each.until}
            for each in found.wrong
        ],
    }


def table(found: Score) -> Table:
    """A score for people."""
    rows = [
        [
            row.injected.title or str(row.injected.component.kind),
            row.injected.component.name,
            f"{row.injected.loss:.0%}",
            row.outcome,
            "-" if row.after_s is None else duration(row.after_s * 1e3),
        ]
        for row in found.rows
    ]
    rows += [[each.kind, each.name, f"{each.loss:.0%}", "WRONG", "-"] for each in found.wrong]
    return Table(("fault", "component", "loss", "named", "after"), rows, left=2)


def summary(found: Score) -> str:
    """A score in a sentence."""
    times = [row.after_s for row in found.rows if row.outcome == "right" and row.after_s is not None]
    over = sum(row.outcome != "not yet" for row in found.rows)
    told = f"{len(times)} of {over} faults named rightly"
    if times:
        told += f", half of them within {duration(statistics.median(times) * 1e3)}"
    return f"{told}; {len(found.wrong)} named wrongly"
