"""The published results of MRC (arXiv 2605.04333), simulated and compared with the paper's.

Each row is a file: a base scenario, the runs that differ from it, and claims with the figures of
:mod:`openmrc.sim.measures` that they are compared with and the bounds for agreement.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from openmrc.errors import ArgumentError
from openmrc.fabric import yamlfile
from openmrc.model import Model
from openmrc.sim.measures import measures
from openmrc.sim.run import Progress, run
from openmrc.sim.scenario import Scenario
from openmrc.sim.sweep import Grid

Figure = Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9_]+$")]
"""``run.measure``."""


class Claim(Model):
    """One published statement, and when our figures agree with it."""

    says: str
    value: Figure | None = None
    ratio: tuple[Figure, Figure] | None = None
    difference: tuple[Figure, Figure] | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    why: str | None = None
    """The reason for our result, found by experiments."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(each is not None for each in (self.value, self.ratio, self.difference)) != 1:
            raise ValueError("one of value, ratio, difference")
        if self.low is None and self.high is None:
            raise ValueError("low or high: nothing would disagree")
        return self

    def of(self, figures: Mapping[str, Mapping[str, float]]) -> float | None:
        """Our value; ``None`` if a run lacks a figure of it."""

        def figure(name: str) -> float | None:
            run, _, measure = name.partition(".")
            return figures.get(run, {}).get(measure)

        if self.value is not None:
            return figure(self.value)
        pair = self.ratio or self.difference
        assert pair is not None
        one, other = figure(pair[0]), figure(pair[1])
        if one is None or other is None:
            return None
        if self.difference:
            return one - other
        return one / other if other else None

    def agrees(self, ours: float | None) -> bool:
        """Whether our value lies within the bounds."""
        return ours is not None and not (
            (self.low is not None and ours < self.low) or (self.high is not None and ours > self.high)
        )


class Row(Model, yamlfile.Sourced):
    """One published result."""

    row: str
    setting: str
    published: str
    scaled: str | None = None
    """What is smaller here than in the paper."""
    base: dict[str, Any]
    runs: dict[str, dict[str, Any]]
    """By name: the fields that differ from the base, dotted."""
    full: dict[str, Any] = Field(default_factory=dict)
    """The fields of a run at the published size."""
    claims: list[Claim]

    def scenarios(self, *, full: bool = False) -> dict[str, Scenario]:
        """The scenario of each run.

        Raises:
            FormatError: if one of them is not a scenario.
        """
        made = {}
        for name, changes in self.runs.items():
            fields = {**(self.full if full else {}), **changes}
            axes: dict[str, list[Any]] = {}
            if isinstance(short := fields.get("transport"), str):
                axes["transport"] = [short]
                del fields["transport"]
            axes["run"] = [fields]
            grid = Grid(base=self.base, axes=axes)
            grid._source = self._source
            made[name] = grid.points()[0][1].model_copy(update={"seed": 1})
        return made


@dataclass(frozen=True)
class Verdict:
    """A claim and our value; ``None`` if a run that it needs did not finish."""

    claim: Claim
    ours: float | None
    agrees: bool


@dataclass(frozen=True)
class Outcome:
    """The results of a row."""

    row: Row
    figures: Mapping[str, Mapping[str, float]]
    """Every measure of every run."""
    verdicts: Sequence[Verdict]
    took_s: float
    """Elapsed time, seconds."""
    interrupted: bool = False

    @property
    def agrees(self) -> bool:
        """Whether our values agree with every claim."""
        return all(verdict.agrees for verdict in self.verdicts)


def rows(only: Sequence[str] = ()) -> list[Row]:
    """The published rows, all of them or the named ones.

    Raises:
        ArgumentError: if there is no such row.
    """
    folder = Path(str(resources.files("openmrc") / "scenarios" / "published"))
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        row = yamlfile.read(path, Row)
        found[row.row] = row
    unknown = [name for name in only if name.upper() not in found]
    if unknown:
        raise ArgumentError(f"--only: there is no row {unknown[0]}; there are {', '.join(found)}")
    return [row for name, row in found.items() if not only or name in {each.upper() for each in only}]


def reproduce(
    row: Row, *, full: bool = False, progress: Callable[[str, Progress], object] | None = None
) -> Outcome:
    """Runs a row; an interrupt ends it with what is known so far.

    Args:
        row: What to run.
        full: At the published size, which takes hours, and memory in proportion.
        progress: Called with the run's name and how far it has come.
    """
    begin = time.monotonic()
    figures: dict[str, Mapping[str, float]] = {}
    interrupted = False
    for name, scenario in row.scenarios(full=full).items():

        def report_progress(so_far: Progress, name: str = name) -> None:
            if progress is not None:
                progress(f"{row.row} {name}", so_far)

        try:
            results = run(scenario, report_progress)
            if results.interrupted:
                raise KeyboardInterrupt
            figures[name] = measures(results)
        except KeyboardInterrupt:
            interrupted = True
            break
    verdicts = [Verdict(claim, ours := claim.of(figures), claim.agrees(ours)) for claim in row.claims]
    return Outcome(row, figures, verdicts, time.monotonic() - begin, interrupted)
