"""The published results of MRC (arXiv 2605.04333), simulated and compared with the paper's.

Each row is a file: a base scenario, the runs that differ from it, and claims with the figures of
:mod:`openmrc.sim.measures` that they are compared with and the bounds for agreement. Every run is repeated
with several seeds. A claim agrees only if its interval over the seeds lies within bounds that were written
down before.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, RootModel, StrictInt, model_validator

from openmrc.errors import ArgumentError
from openmrc.fabric import yamlfile
from openmrc.model import Model
from openmrc.sim import check, transports
from openmrc.sim.measures import measures
from openmrc.sim.run import Progress, run
from openmrc.sim.scenario import Scenario
from openmrc.sim.sweep import Grid, key, read_point, write_point

Figure = Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9_]+$")]
"""``run.measure``."""

Bounds = tuple[float | None, float | None]
"""The least and the greatest value; ``None`` for no bound."""

STUDENT = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    7: 2.36,
    8: 2.31,
    9: 2.26,
    11: 2.20,
    15: 2.13,
    31: 2.04,
}
"""97.5 % quantile of Student's t distribution by degrees of freedom."""


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean."""
    freedom = len(values) - 1
    if freedom < 1:
        return 0.0
    known = max(each for each in STUDENT if each <= freedom)
    return STUDENT[known] * statistics.stdev(values) / math.sqrt(len(values))


class _Fields(RootModel[dict[str, Any]]):
    """Fields of a scenario or of a transport."""


class Claim(Model):
    """One published statement, and when our figures agree with it."""

    says: str
    value: Figure | None = None
    ratio: tuple[Figure, Figure] | None = None
    difference: tuple[Figure, Figure] | None = None
    low: float | None = None
    high: float | None = None
    over: Literal["every seed", "mean"] = "every seed"
    """What has to lie within the bounds: the value with every seed, or the 95 % confidence interval of the
    mean over the seeds, where the paper gives an average over paths or runs."""
    seeds: Annotated[StrictInt, Field(ge=2)] | None = None
    """More seeds than the row has, for a mean whose interval would otherwise be wider than the bounds."""
    unit: str = ""
    calibrated: str | None = None
    """What was chosen so that this value results: the claim then counts neither way."""
    reduced: Bounds | None = None
    """Bounds of the value in the reduced form that tests run; those of the claim if left out."""
    why: str | None = None
    """The reason for our result, found by experiments."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(each is not None for each in (self.value, self.ratio, self.difference)) != 1:
            raise ValueError("one of value, ratio, difference")
        if self.low is None and self.high is None:
            raise ValueError("low or high: nothing would disagree")
        if self.reduced == (None, None):
            raise ValueError("reduced: nothing would disagree")
        return self

    def bounds(self, *, reduced: bool = False) -> Bounds:
        """The bounds for agreement."""
        return self.reduced if reduced and self.reduced is not None else (self.low, self.high)

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

    def runs(self) -> set[str]:
        """The runs that it needs."""
        figures = [self.value, *(self.ratio or ()), *(self.difference or ())]
        return {figure.partition(".")[0] for figure in figures if figure is not None}


class Sweep(Model):
    """Values of something that the paper leaves open, and the claims that depend on it."""

    over: str
    """A dotted field of the scenario, or ``rocev2.FIELD`` for a setting of RoCEv2."""
    values: Annotated[list[Any], Field(min_length=2)]
    claims: list[str]
    """What they say."""
    seeds: Annotated[StrictInt, Field(ge=1)] | None = None
    """Fewer seeds than the row has, where a value takes long."""


class Row(Model, yamlfile.Sourced):
    """One published result."""

    row: str
    setting: str
    published: str
    testbed: str | None = None
    """The file with the fabric that several rows share."""
    scaled: str | None = None
    """What is smaller here than in the paper."""
    chosen: list[str] = Field(default_factory=list)
    """What the paper leaves open and is chosen here."""
    base: dict[str, Any]
    rocev2: dict[str, Any] = Field(default_factory=dict)
    """Settings of RoCEv2 that differ from those in ``rocev2.yaml``."""
    runs: dict[str, dict[str, Any]]
    """By name: the fields that differ from the base, dotted."""
    full: dict[str, Any] = Field(default_factory=dict)
    """The fields of a run at the published size."""
    small: dict[str, Any] = Field(default_factory=dict)
    """The fields of a run in the reduced form that tests run."""
    seeds: Annotated[StrictInt, Field(ge=1)] = 8
    claims: list[Claim]
    sweeps: list[Sweep] = Field(default_factory=list)

    def scenarios(self, *, full: bool = False, reduced: bool = False, seed: int = 1) -> dict[str, Scenario]:
        """The scenario of each run.

        Raises:
            FormatError: if one of them is not a scenario.
        """
        base = self.base
        if self.testbed:
            base = {**yamlfile.read(self.beside / f"testbed-{self.testbed}.yaml", _Fields).root, **base}
        made = {}
        for name, changes in self.runs.items():
            fields = {**(self.full if full else {}), **changes, **(self.small if reduced else {})}
            axes: dict[str, list[Any]] = {}
            if isinstance(short := fields.get("transport"), str):
                axes["transport"] = [short]
                del fields["transport"]
            axes["run"] = [fields]
            grid = Grid(base=base, axes=axes)
            grid._source = self._source
            made[name] = self._seeded(grid.points()[0][1], short if isinstance(short, str) else "", seed)
        return made

    def _seeded(self, scenario: Scenario, short: str, seed: int) -> Scenario:
        traffic, faults = (
            [
                part.model_copy(update={"seed": seed}) if "seed" in type(part).model_fields else part
                for part in parts
            ]
            for parts in (scenario.traffic, scenario.faults)
        )
        scenario = scenario.model_copy(update={"seed": seed, "traffic": traffic, "faults": faults})
        if scenario.transport.kind != "rocev2":
            return scenario
        given = {option.partition("=")[0] for option in short.split(":")[1:]}
        settings = {**yamlfile.read(self.beside / "rocev2.yaml", _Fields).root, **self.rocev2}
        return transports.with_fields(scenario, {k: v for k, v in settings.items() if k not in given})

    def varied(self, sweep: Sweep, value: object) -> "Row":
        """The row with one value of a sweep, and only the claims that depend on it."""
        claims = [claim for claim in self.claims if claim.says in sweep.claims]
        needed = set().union(*(claim.runs() for claim in claims))
        runs = {name: dict(changes) for name, changes in self.runs.items() if name in needed}
        rocev2 = dict(self.rocev2)
        if sweep.over.startswith("rocev2."):
            rocev2[sweep.over.removeprefix("rocev2.")] = value
        else:
            root = sweep.over.partition(".")[0]
            for changes in runs.values():
                # A run that has its own there, as a control has other faults, is not of the sweep.
                if root not in changes:
                    changes[sweep.over] = value
        made = self.model_copy(update={"claims": claims, "runs": runs, "rocev2": rocev2, "sweeps": []})
        made._source = self._source
        return made


@dataclass(frozen=True)
class Verdict:
    """A claim and our values, one for each seed; none if a run that it needs did not finish."""

    claim: Claim
    values: Sequence[float]
    bounds: Bounds

    @property
    def ours(self) -> float | None:
        """The mean over the seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """What has to lie within the bounds."""
        if not self.values:
            return None
        if self.claim.over == "every seed":
            return min(self.values), max(self.values)
        mean, half = statistics.fmean(self.values), half_width(self.values)
        return mean - half, mean + half

    @property
    def within(self) -> bool:
        """Whether the interval lies within the bounds."""
        if self.interval is None:
            return False
        (least, greatest), (low, high) = self.interval, self.bounds
        # The comparisons are false for a value that is not a number.
        return (low is None or least >= low) and (high is None or greatest <= high) and not math.isnan(least)

    @property
    def word(self) -> Literal["agrees", "disagrees", "calibrated"]:
        """How our values compare with the published one."""
        if self.claim.calibrated and self.within:
            return "calibrated"
        return "agrees" if self.within else "disagrees"


@dataclass(frozen=True)
class Swept:
    """The claims of a sweep at each of its values."""

    sweep: Sweep
    verdicts: Sequence[Sequence[Verdict]]


@dataclass(frozen=True)
class Outcome:
    """The results of a row."""

    row: Row
    figures: Sequence[Mapping[str, Mapping[str, float]]]
    """For each seed: every measure of every run."""
    verdicts: Sequence[Verdict]
    took_s: float
    """Processor time of all its runs, those of its sweeps included, seconds."""
    swept: Sequence[Swept] = ()
    interrupted: bool = False

    @property
    def agrees(self) -> bool:
        """Whether our values lie within the bounds of every claim."""
        return all(verdict.within for verdict in self.verdicts)


def rows(only: Sequence[str] = ()) -> list[Row]:
    """The published rows, all of them or the named ones; ``P14`` names ``P14A``, ``P14B`` and so on.

    Raises:
        ArgumentError: if there is no such row.
    """
    folder = Path(str(resources.files("openmrc") / "scenarios" / "published"))
    found = {}
    for path in sorted(folder.glob("p*.yaml")):
        row = yamlfile.read(path, Row)
        found[row.row] = row
    named = {
        each.upper(): {name for name in found if each.upper() in (name, name.rstrip("ABCDEF"))}
        for each in only
    }
    unknown = [name for name, of_it in named.items() if not of_it]
    if unknown:
        raise ArgumentError(f"--only: there is no row {unknown[0]}; there are {', '.join(found)}")
    return [row for name, row in found.items() if not only or name in set().union(*named.values())]


def reproduce(
    row: Row,
    *,
    full: bool = False,
    reduced: bool = False,
    seeds: int | None = None,
    sweeps: bool = False,
    keep: Path | None = None,
    progress: Callable[[str, Progress], object] | None = None,
) -> Outcome:
    """Runs a row; an interrupt ends it with what is known so far.

    Args:
        row: What to run.
        full: At the published size, which takes hours, and memory in proportion.
        reduced: In the form that tests run, with bounds for that form.
        seeds: How many seeds, from 1 on; those of the row, and of its claims that have more, if left out.
        sweeps: Also with the values of what the paper leaves open.
        keep: A folder with one file for each finished run. A run that has a file there is not repeated. The
            name of the file depends on the scenario and the version of openmrc.
        progress: Called with the run's name and how far it has come.
    """
    figures: list[Mapping[str, Mapping[str, float]]] = []
    interrupted = False
    took_s = 0.0
    of_claims = [seeds or max(claim.seeds or 0, row.seeds) for claim in row.claims]
    for seed in range(1, max(of_claims) + 1):
        names = set(row.runs) if seed <= (seeds or row.seeds) else set()
        names |= {
            name
            for claim, most in zip(row.claims, of_claims, strict=True)
            if seed <= most
            for name in claim.runs()
        }
        done: dict[str, Mapping[str, float]] = {}
        try:
            for name, finished in _runs(row, names, full, reduced, seed, keep, progress):
                done[name] = finished.figures
                took_s += finished.took_s
        except KeyboardInterrupt:
            interrupted = True
        if done:
            figures.append(done)
        if interrupted:
            break
    swept: list[Swept] = []
    if sweeps and not interrupted:
        for sweep in row.sweeps:
            outcomes = [
                reproduce(
                    row.varied(sweep, value),
                    full=full,
                    seeds=seeds or sweep.seeds,
                    keep=keep,
                    progress=progress,
                )
                for value in sweep.values
            ]
            took_s += sum(outcome.took_s for outcome in outcomes)
            interrupted = interrupted or any(outcome.interrupted for outcome in outcomes)
            swept.append(Swept(sweep, [outcome.verdicts for outcome in outcomes]))
    verdicts = [
        _verdict(claim, figures[:most], reduced) for claim, most in zip(row.claims, of_claims, strict=True)
    ]
    return Outcome(row, figures, verdicts, took_s, swept, interrupted)


@dataclass(frozen=True)
class _Finished:
    """A finished run."""

    figures: Mapping[str, float]
    took_s: float


def _runs(
    row: Row,
    names: set[str],
    full: bool,
    reduced: bool,
    seed: int,
    keep: Path | None,
    progress: Callable[[str, Progress], object] | None,
) -> Iterator[tuple[str, _Finished]]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    for name, scenario in row.scenarios(full=full, reduced=reduced, seed=seed).items():
        if name not in names:
            continue

        def report_progress(so_far: Progress, name: str = name) -> None:
            if progress is not None:
                progress(f"{row.row} {name}, seed {seed}", so_far)

        kept_in = None if keep is None else keep / f"{key(check.check(scenario))}.json"
        if kept_in is not None and (kept := read_point(kept_in)) is not None:
            yield name, _Finished(**kept)
            continue
        begin = time.process_time()
        results = run(scenario, report_progress)
        if results.interrupted:
            raise KeyboardInterrupt
        finished = _Finished(measures(results), time.process_time() - begin)
        if kept_in is not None:
            write_point(kept_in, asdict(finished))
        yield name, finished


def _verdict(claim: Claim, figures: Sequence[Mapping[str, Mapping[str, float]]], reduced: bool) -> Verdict:
    values = [value for each in figures if (value := claim.of(each)) is not None]
    # A run without the figure is no agreement.
    return Verdict(claim, values if len(values) == len(figures) else [], claim.bounds(reduced=reduced))
