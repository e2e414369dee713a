"""A grid of scenarios, run over all cores or on a cluster, with every finished point kept.

Every point is kept in a file named by the hash of its scenario and of the openmrc version. So an interrupted
sweep goes on where it stopped, and a grid that has grown runs only what is new.
"""

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictInt

import openmrc
from openmrc import _core, csvcells, notebook
from openmrc.errors import ArgumentError, Error, FormatError
from openmrc.extras import import_optional
from openmrc.fabric import yamlfile
from openmrc.files import read_text, replacing, write_text
from openmrc.model import Model
from openmrc.sim import check, clusters, collectives, custom, memory, transports
from openmrc.sim.results import Results
from openmrc.sim.run import run
from openmrc.sim.scenario import Scenario
from openmrc.units import size

MOST_POINTS = 1_000_000
"""More points of a grid take gigabytes for their scenarios alone, and each point is a file."""

Point = dict[str, Any]
"""The values of the axes at one point of the grid."""


class Grid(Model, yamlfile.Sourced):
    """A base scenario, axes, seeds. An axis is the dotted name of a field with the values it takes."""

    base: dict[str, Any] | str
    """A scenario, or the name of a file with one, relative to the grid's own."""
    axes: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    """By dotted field, as ``traffic.0.bytes``, its values. ``transport`` also takes short texts, as
    ``rocev2:qps=8``. An axis with a name of its own has mappings from dotted fields to values."""
    seeds: Annotated[list[StrictInt], Field(min_length=1)] = Field(default_factory=lambda: [1])
    """Every point runs with each."""

    def points(self) -> list[tuple[Point, Scenario]]:
        """Every point and its scenario, in the order of the axes, seeds last.

        Raises:
            FormatError: if a point is no scenario, naming the point and the field; or if there are too many.
        """
        count = math.prod(map(len, self.axes.values())) * len(self.seeds)
        if count > MOST_POINTS:
            raise FormatError(f"{self.place('axes')}: a grid of {count:,} points; at most {MOST_POINTS:,}")
        base = self._base()
        made = []
        for values in itertools.product(*self.axes.values(), self.seeds):
            point = dict(zip((*self.axes, "seed"), values, strict=True))
            made.append((point, self._scenario(base, point)))
        return made

    def _base(self) -> dict[str, Any]:
        if not isinstance(self.base, str):
            return self.base
        scenario = yamlfile.read(self.beside / self.base, Scenario)
        dumped: dict[str, Any] = scenario.model_dump(mode="json")
        return dumped

    def _scenario(self, base: dict[str, Any], point: Point) -> Scenario:
        value = json.loads(json.dumps(base))
        short = None
        for axis, chosen in point.items():
            if axis == "transport" and isinstance(chosen, str):
                short = chosen
            elif isinstance(chosen, Mapping) and not _known(axis):
                for name, each in chosen.items():
                    self._set(value, name, each, axis)
            else:
                self._set(value, axis, chosen, axis)
        try:
            scenario = Scenario.model_validate(value, context={"beside": self.beside})
        except ArgumentError as error:
            raise FormatError(f"{self._place()} at {_as_text(point)}: {error}") from None
        if self._source is not None:
            scenario._source = yamlfile.Source(self._source.path, None)
        return transports.apply(scenario, short) if short else scenario

    def _set(self, value: Any, name: str, new: Any, axis: str) -> None:
        *path, last = (int(part) if part.isdigit() else part for part in name.split("."))
        try:
            for part in path:
                if isinstance(value, dict) and value.get(part) is None:
                    value[part] = {}
                value = value[part]
            value[last] = new
        except (TypeError, IndexError, AttributeError, KeyError):
            raise FormatError(
                f"{self._place('axes', axis)}: {name}: the scenario has no such place"
            ) from None

    def _place(self, *location: int | str) -> str:
        return self._source.at(location) if self._source else "grid"


def _known(axis: str) -> bool:
    return "." in axis or axis in Scenario.model_fields


def _as_text(point: Point) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def load(path: Path | str) -> Grid:
    """Reads a grid from a YAML file.

    Raises:
        FormatError: if it is no grid, naming file, line and field.
        OSError: if it cannot be read.
    """
    return yamlfile.read(Path(path), Grid)


@dataclass(frozen=True, repr=False)
class Sweep:
    """The finished points of a grid."""

    rows: Sequence[Mapping[str, Any]]
    """One for each finished point: values of the axes, seed, summary, counters, mean step time."""
    points: int
    """Points of the grid."""
    kept: int
    """Finished points that an earlier sweep has left."""

    @property
    def complete(self) -> bool:
        """Whether every point is finished."""
        return len(self.rows) == self.points

    def __repr__(self) -> str:
        return f"<Sweep: {len(self.rows):,} of {self.points:,} points>"

    def _repr_html_(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        shown = names[: names.index("seed") + 9] if "seed" in names else names[:10]
        cells = [[_cell(row.get(name)) for name in shown] for row in self.rows]
        return notebook.table(cells, shown)

    def to_pandas(self) -> Any:
        """One row for each point, as a ``pandas.DataFrame``.

        Raises:
            Error: if pandas is not installed.
        """
        return import_optional("pandas", "to_pandas", "pandas").DataFrame(list(self.rows))

    def to_arrow(self) -> Any:
        """One row for each point, as a ``pyarrow.Table``; values of axes that are not numbers are text.

        Raises:
            Error: if PyArrow is not installed.
        """
        pa = import_optional("pyarrow", "this", "pyarrow")
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        columns = {}
        for name in names:
            values = [row.get(name) for row in self.rows]
            if any(isinstance(value, dict | list) for value in values):
                values = [json.dumps(value) for value in values]
            try:
                columns[name] = pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                columns[name] = pa.array([None if value is None else str(value) for value in values])
        return pa.table(columns)

    def write(self, path: Path | str) -> None:
        """Writes the frame as Parquet or CSV, by the name's ending.

        Raises:
            Error: if PyArrow is not installed, or for another ending.
            OSError: if it cannot be written.
        """
        path = Path(path)
        if path.suffix not in (".parquet", ".csv"):
            raise ArgumentError(f"{path}: the name has to end in .parquet or .csv")
        table = self.to_arrow()
        with replacing(path, "wb") as file:
            if path.suffix == ".parquet":
                import_optional("pyarrow.parquet", "this", "pyarrow").write_table(table, file)
            else:
                columns = {name: csvcells.written(cells) for name, cells in table.to_pydict().items()}
                table = type(table).from_pydict(columns, table.schema)
                import_optional("pyarrow.csv", "this", "pyarrow").write_csv(table, file)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def sweep(
    grid: Grid,
    directory: Path | str,
    *,
    jobs: int = -1,
    backend: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Sweep:
    """Runs every point of a grid that has not been run yet.

    An interrupt ends it. Finished points are kept and returned.

    Args:
        grid: What to run.
        directory: Where finished points are kept, one JSON file each.
        jobs: Processes at once; -1 for one on each core.
        backend: ``dask``, ``ray`` or another backend of joblib's, whose client has been connected before, as
            :func:`openmrc.sim.clusters.connected` does. Workers on other machines need openmrc; points come
            back to this machine, which keeps them.
        progress: Called with the number of finished points and the number of points.

    Raises:
        FormatError, ArgumentError: if a point cannot be run, before any is.
        Error: if joblib is not installed, or if a worker is killed.
    """
    joblib = import_optional("joblib", "a sweep", "openmrc[sim]")
    if jobs == 0:
        raise ArgumentError("jobs: 0 would run nothing; -1 is one on each core")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    points = grid.points()
    paths = [
        directory / f"{name}.json"
        for name in _check(points, joblib.effective_n_jobs(jobs) if backend is None else 1)
    ]
    rows = {path: row for path in paths if (row := read_point(path)) is not None}
    left = {path: scenario for path, (_, scenario) in zip(paths, points, strict=True) if path not in rows}
    # Points with the same scenario share a file, and are run once.
    sharing = Counter(paths)
    done = kept = sum(path in rows for path in paths)
    if progress is not None:
        progress(done, len(points))
    try:
        work = ((str(path), check.with_files(scenario)) for path, scenario in left.items())
        for path, row in clusters.call(_run, work, jobs=jobs, backend=backend):
            if row is None:
                raise KeyboardInterrupt
            write_point(Path(path), row)
            rows[Path(path)] = row
            done += sharing[Path(path)]
            if progress is not None:
                progress(done, len(points))
    except KeyboardInterrupt:
        pass
    except Exception as error:
        if type(error).__name__ not in clusters.WORKER_LOST:
            raise
        raise Error(
            f"a worker was killed, as happens when memory runs out: {done} of {len(points)} points are kept,"
            " and the same command goes on from there; fewer jobs need less memory"
        ) from None
    found = [
        {**_flat(point), **rows[path]} for path, (point, _) in zip(paths, points, strict=True) if path in rows
    ]
    return Sweep(found, len(points), kept)


def key(checked: _core.CheckedScenario, own: str = "") -> str:
    """The name of a point's file: a hash of the scenario, with everything filled in, and of the version.

    Args:
        checked: The scenario.
        own: :func:`openmrc.sim.custom.fingerprint` of the classes that it names.
    """
    parts = [openmrc.__version__, json.loads(checked.filled())]
    text = json.dumps([*parts, own] if own else parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def row(results: Results) -> dict[str, Any]:
    """The figures of a run, flat."""
    took = [step.took_us for step in results.steps if step.took_us is not None]
    return {
        **asdict(results.summary()),
        "base_rtt_us": results.base_rtt_ps * 1e-6,
        "step_time_us": sum(took) / len(took) if took else None,
        **collectives.figures(results.collectives),
        **results.totals,
        **results.life,
    }


def _run(path: str, scenario: Scenario) -> tuple[str, dict[str, Any] | None]:
    """Runs a point, in a worker; gives no row if it was interrupted there."""
    results = run(scenario)
    return path, None if results.interrupted else row(results)


def read_point(path: Path) -> dict[str, Any] | None:
    """A finished point; none if its file is missing, or if a crash of the machine has left it empty."""
    try:
        row: dict[str, Any] = json.loads(read_text(path))
    except FileNotFoundError:
        return None
    except ValueError:
        path.unlink()
        return None
    return row


def write_point(path: Path, row: Mapping[str, Any]) -> None:
    """Writes a finished point in one step, so that a file is never half a point."""
    # A crash of the machine may leave it empty, which costs one point; thousands of them need no fsync each.
    write_text(path, json.dumps(row), sync=False)


def _flat(point: Point) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for axis, value in point.items():
        flat.update(value if isinstance(value, Mapping) and not _known(axis) else {axis: value})
    return flat


def _check(points: Sequence[tuple[Point, Scenario]], at_once: int) -> list[str]:
    """Checks every point, and the memory of the largest; returns the names of the points' files."""
    names = []
    largest, largest_point = 0, points[0][0]
    tried: set[str] = set()
    for point, scenario in points:
        network = scenario.model_dump_json(exclude={"traffic", "seed"})
        try:
            checked = check.check(scenario)
            if network not in tried:
                check.try_network(scenario, checked)
                tried.add(network)
        except ArgumentError as error:
            raise ArgumentError(f"at {_as_text(point)}: {error}") from None
        if (needed := sum(checked.memory().values())) > largest:
            largest, largest_point = needed, point
        names.append(key(checked, custom.fingerprint(scenario)))
    available = memory.available()
    if largest * at_once > available:
        raise ArgumentError(
            f"the largest point ({_as_text(largest_point)}) needs about {size(largest)} of memory,"
            f" {at_once} at once {size(largest * at_once)}, and {size(available)} are there;"
            " fewer jobs need less"
        )
    return names
