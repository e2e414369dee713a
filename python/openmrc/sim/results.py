"""The results of a run: columns of messages, counters, a summary, and what the run was asked to record."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from openmrc import notebook
from openmrc.errors import Error
from openmrc.extras import import_optional
from openmrc.files import replacing, write_text
from openmrc.sim import collectives
from openmrc.sim.collectives import CollectiveTime
from openmrc.sim.scenario import Scenario
from openmrc.sim.skipped import Skipped

# An import circle: `frames`, `pictures`, `report` and `text` read results, and the methods of `Results` that
# make tables, pictures and reports call them. These methods import them when they are called.
if TYPE_CHECKING:
    import numpy as np

    from openmrc import _core

NEVER = 2**64 - 1
"""The time, in a column, of something that did not happen."""

DROPS = ("dropped_data", "dropped_control", "dropped_down", "dropped_lossy", "overflowed")
"""The counters of packets lost in the network or in a receive buffer, by reason."""

IMPAIRED = ("down", "loss", "bit-errors", "slow", "mtu")
"""Kinds of entries of the log after which something is worse than before."""

REPAIRED = "up"
"""The kind of entries of the log after which something is as it was."""

_PS = 1e-12

Columns = Mapping[str, memoryview]
"""Columns of unsigned 64-bit numbers by name."""


@dataclass(frozen=True)
class Summary:
    """The most important figures. Times are microseconds; ``None`` if nothing was delivered.

    A completion time is from a message's posting to its last byte in place. The percentiles are nearest ranks
    over all messages: of 100 messages the 99th percentile is the last but one. Those that were not delivered
    rank behind all others, and a percentile that falls on one of them is ``None``.
    """

    messages: int
    delivered: int
    failed: int
    bytes: int
    """Payload bytes of the messages delivered."""
    first_us: float | None
    """The shortest completion time of those delivered."""
    median_us: float | None
    """The 50th percentile."""
    p99_us: float | None
    """The 99th percentile."""
    last_us: float | None
    """The longest completion time of those delivered."""
    makespan_us: float | None
    """From the start to the last byte of all."""
    goodput_bps: float | None
    """Payload bits delivered over the makespan, all hosts together."""
    fairness: float | None
    """Jain's index of the goodputs of the sending hosts, each until its own last byte was in place: 1 if all
    are equal, 1/n if one of n had everything. ``None`` if fewer than two hosts sent or nothing was
    delivered."""


@dataclass(frozen=True)
class Step:
    """A step of a training pattern."""

    pattern: int
    """Place of the pattern in the scenario's traffic."""
    number: int
    """Which step, from 0."""
    end_us: float | None
    """When the last rank reached its end; ``None`` if not all have."""
    took_us: float | None
    """Since the end of the step before, or the pattern's start."""


@dataclass(frozen=True)
class LogEvent:
    """One line of the event log."""

    time_us: float
    kind: str
    """A fault: ``down``, ``up``, ``loss``, ``bit-errors``, ``slow``, ``mtu``. Routing: ``route-withdrawn``,
    ``route-restored``. A queue pair: ``ev-bad``, ``ev-good``, ``peer-ports`` (it has learnt which ports of
    its peer are up), ``mtu-refused`` (some planes carry short packets only), ``qp-failed``."""
    where: str
    """Link, switch or port; of ``peer-ports`` the planes whose ports are up, of ``mtu-refused`` those that
    carry short packets only."""
    host: int | None = None
    """The host of the queue pair."""
    peer: int | None = None
    """The host of its peer."""
    ev: int | None = None
    plane: int | None = None
    value: float | None = None
    """Probability of loss, share of the rate, longest IP packet."""

    @classmethod
    def of(cls, entry: "_core.SimulationLogEntry") -> Self:
        """An entry of the core's log."""
        return cls(
            time_us=entry.time_ps * 1e-6,
            kind=entry.kind,
            where=entry.place,
            host=entry.host,
            peer=entry.peer,
            ev=entry.ev,
            plane=entry.plane,
            value=entry.value,
        )


@dataclass(frozen=True, repr=False)
class Series:
    """Time series: one row for each sample, counters from the start."""

    columns: Columns
    """``time_ps`` and every counter of :attr:`Results.totals`."""
    patterns: int
    planes: int
    layers: int
    links: Sequence[int]
    """Numbers of the links that are recorded one by one: indices of :attr:`Results.link_names`."""
    placed: memoryview
    """Payload bytes in place: samples x patterns."""
    placed_by_plane: memoryview
    """The same by plane: samples x planes."""
    groups: memoryview
    """Samples x planes x layers x (up, down) x (bytes sent, bytes waiting, longest queue)."""
    sent: memoryview
    """Bytes sent: samples x links x (up, down)."""
    waiting: memoryview
    """Bytes waiting, in the same shape."""

    def __repr__(self) -> str:
        return f"<Series of {len(self.columns['time_ps']):,} samples, {len(self.links):,} links one by one>"

    @property
    def times_us(self) -> list[float]:
        """When the samples were taken."""
        return [time * 1e-6 for time in self.columns["time_ps"]]

    def array(self, name: str) -> "np.ndarray[Any, Any]":
        """``placed``, ``placed_by_plane``, ``groups``, ``sent`` or ``waiting`` in its shape, without copying.

        Raises:
            Error: if NumPy is not installed.
        """
        try:
            import numpy as np
        except ModuleNotFoundError:
            raise Error("time series need NumPy: pip install numpy") from None
        samples = len(self.columns["time_ps"])
        shape = {
            "placed": (samples, self.patterns),
            "placed_by_plane": (samples, self.planes),
            "groups": (samples, self.planes, self.layers, 2, 3),
            "sent": (samples, len(self.links), 2),
            "waiting": (samples, len(self.links), 2),
        }[name]
        array: np.ndarray[Any, Any] = np.frombuffer(getattr(self, name), dtype=np.uint64).reshape(shape)
        return array


@dataclass(frozen=True, repr=False)
class Results:
    """Results of one run."""

    scenario: Scenario
    columns: Columns
    """One number for each message: ``src``, ``dst``, ``bytes``, ``pattern``, ``posted_ps``, ``delivered_ps``,
    ``completed_ps``, ``failed``; unsigned 64-bit, :data:`NEVER` for what did not happen."""
    totals: Mapping[str, int]
    """Counters of the whole run by name."""
    base_rtt_ps: int
    """Round-trip time of a full packet and its SACK on the longest idle path, picoseconds."""
    interrupted: bool = False
    """Whether an interrupt ended the run: the results are what was known by then."""
    links: Columns = field(default_factory=dict)
    """By link and direction: ``plane``, ``layer`` (0: host to T0), ``lower``, ``uplink``, ``down`` (0: up),
    ``bytes`` on the cable; with ``record.ports`` also ``marked``, ``trimmed``, ``dropped``, ``lost``,
    ``longest_queue``."""
    link_names: Sequence[str] = ()
    """Names of the links, in the order of their numbers: rows 2i and 2i + 1 of :attr:`links` are link i."""
    evs: Columns | None = None
    """With ``record.evs``, by connection and entropy value: ``connection``, ``src``, ``dst``, ``ev``,
    ``plane``, ``sent``, ``arrived``, ``trimmed``, ``marked``, ``condemned``."""
    series: Series | None = None
    """With ``record.series``."""
    log: Sequence[LogEvent] = ()
    """With ``record.events``."""
    log_missed: int = 0
    """Events that the log had no room for."""
    steps: Sequence[Step] = ()
    """Of training patterns."""
    nodes: Columns = field(default_factory=dict)
    """With ``record.nodes``, a number for each node of recorded jobs: ``pattern``, ``rank``, ``node`` (its
    number in its trace), ``began_ps`` (of a receive: when its message was there), ``ended_ps``."""
    life: Mapping[str, int] = field(default_factory=dict)
    """What connections did beside sending messages, all zero unless the transport asks for it.

    ``prove_mtu``: proofs that have ended (``mtu_proofs``), and those that failed their connection
    (``mtu_refused``). ``linger``: queue pairs destroyed (``lingered``), the most of them that answered at the
    same time at one host (``lingering_most``), and packets that they sent (``lingering_packets``).
    ``receives``: messages that found none (``receive_waits``), and how long those that found one at last have
    waited, all together (``receive_waited_ps``)."""
    skipped: Skipped | None = None
    """With ``engine: auto``: what arrived without packets."""

    @classmethod
    def of(cls, scenario: Scenario, simulation: "_core.Simulation", *, interrupted: bool = False) -> Self:
        """The results of a simulation as it stands."""
        simulation.finish_record()
        record = scenario.record
        # The names of millions of links take memory: only for runs that record something.
        names = simulation.link_names() if record.is_on else ()
        totals = simulation.totals()
        return cls(
            scenario,
            _columns(simulation.messages()),
            totals,
            simulation.base_rtt(),
            interrupted,
            _columns(simulation.links()) if record.is_on else {},
            names,
            _columns(simulation.evs()) if record.evs else None,
            _series(scenario, simulation, names) if record.series else None,
            [LogEvent.of(entry) for entry in simulation.log()],
            simulation.log_missed(),
            _steps(scenario, simulation),
            _columns(simulation.nodes()) if record.nodes else {},
            simulation.life(),
            Skipped.of(simulation, totals["data_packets"]) if scenario.engine == "auto" else None,
        )

    def __repr__(self) -> str:
        summary = self.summary()
        end = "" if summary.last_us is None else f", the last after {summary.last_us:,.1f} us"
        return f"<Results: {summary.delivered:,} of {summary.messages:,} messages delivered{end}>"

    def _repr_html_(self) -> str:
        """The summary, and pictures if the run recorded time series and matplotlib is installed."""
        from openmrc.sim import pictures
        from openmrc.sim.text import headline

        shown = notebook.table(headline(self))
        if self.series is not None and pictures.are_possible():
            shown += self.figures()._repr_html_()
        return shown

    def figures(self) -> notebook.Gallery:
        """Every picture that these results allow, by name, as matplotlib figures; a notebook shows them.

        Raises:
            Error: if matplotlib is not installed.
        """
        from openmrc.sim import pictures

        return notebook.Gallery({name: draw(self) for name, draw in pictures.available(self).items()})

    def to_pandas(self) -> Any:
        """The messages as a ``pandas.DataFrame``: times in microseconds, missing where nothing happened.

        The other frames: ``frames().to_pandas()``.

        Raises:
            Error: if pandas or PyArrow is not installed.
        """
        import_optional("pandas", "to_pandas", "pandas")
        return self.frames()["flows"].to_pandas()

    def to_numpy(self) -> dict[str, "np.ndarray[Any, Any]"]:
        """The columns of messages as NumPy arrays, without copying.

        Raises:
            Error: if NumPy is not installed.
        """
        np = _numpy()
        return {name: np.frombuffer(column, dtype=np.uint64) for name, column in self.columns.items()}

    def to_arrow(self) -> Any:
        """The messages as a ``pyarrow.Table``, without copying; :data:`NEVER` for what did not happen.

        Raises:
            Error: if PyArrow is not installed.
        """
        return _table(self.columns)

    def frames(self) -> notebook.Frames:
        """All results, as ``pyarrow.Table`` by name. What the run did not record is missing.

        One row stands for a message in ``flows``, a link and direction in ``links``, a plane in ``planes``, a
        connection and entropy value in ``evs``, a sample in ``series`` (counters since the sample before), a
        sample, link and direction in ``link_series``, an event in ``events``, a training step in ``steps``, a
        collective operation in ``collectives``, a step of one in ``collective_steps``.

        Raises:
            Error: if PyArrow is not installed.
        """
        from openmrc.sim import frames

        return notebook.Frames(frames.of(self))

    def to_parquet(self, directory: Path | str) -> list[Path]:
        """Writes every frame as ``DIR/NAME.parquet``, and ``DIR/summary.json``; returns the paths.

        Raises:
            Error: if PyArrow is not installed.
            OSError: if they cannot be written.
        """
        parquet = import_optional("pyarrow.parquet", "to_parquet", "pyarrow")
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, table in self.frames().items():
            paths.append(directory / f"{name}.parquet")
            with replacing(paths[-1], "wb") as file:
                parquet.write_table(table, file)
        paths.append(directory / "summary.json")
        write_text(paths[-1], json.dumps(self.to_dict(), indent=2) + "\n")
        return paths

    def pictures(self, directory: Path | str) -> list[Path]:
        """Writes every picture as ``DIR/NAME.png``; returns the paths.

        Raises:
            Error: if matplotlib is not installed.
            OSError: if they cannot be written.
        """
        from openmrc.sim import pictures

        return pictures.save(self, directory)

    def report(self, path: Path | str, title: str = "openmrc simulate") -> None:
        """Writes one self-contained HTML file: figures, pictures, events, the scenario.

        Raises:
            Error: if matplotlib is not installed.
            OSError: if it cannot be written.
        """
        from openmrc.sim import report

        report.write(self, path, title)

    @cached_property
    def collectives(self) -> Sequence[CollectiveTime]:
        """Time, algbw, busbw and step times of each collective operation and all-to-all of the traffic."""
        return collectives.times(self.scenario, self.columns)

    def to_dict(self) -> dict[str, Any]:
        """Summary, counters, collective operations and training steps, for JSON."""
        return {
            "summary": asdict(self.summary()),
            "totals": dict(self.totals),
            "life": dict(self.life),
            "base_rtt_us": self.base_rtt_ps * 1e-6,
            "skipped": None if self.skipped is None else self.skipped.to_dict(),
            "interrupted": self.interrupted,
            "collectives": [asdict(each) for each in self.collectives],
            "steps": [asdict(step) for step in self.steps],
        }

    def completion_times_us(self, pattern: int | None = None) -> list[float]:
        """From posting to the last byte in place, of every message delivered, sorted, microseconds.

        Args:
            pattern: Only messages of this pattern of the scenario's traffic.
        """
        rows = zip(
            self.columns["posted_ps"], self.columns["delivered_ps"], self.columns["pattern"], strict=True
        )
        return sorted(
            (delivered - posted) * 1e-6
            for posted, delivered, of in rows
            if delivered != NEVER and (pattern is None or of == pattern)
        )

    def summary(self, pattern: int | None = None) -> Summary:
        """The most important figures, of all messages or of those of one pattern."""
        times = self.completion_times_us(pattern)
        delivered = self.columns["delivered_ps"]
        rows: Sequence[int] = range(len(delivered))
        if pattern is not None:
            rows = [row for row in rows if self.columns["pattern"][row] == pattern]
        done = [row for row in rows if delivered[row] != NEVER]
        size = sum(self.columns["bytes"][row] for row in done)
        end = max((delivered[row] for row in done), default=None)
        begin = 0
        if pattern is not None:
            begin = round(self.scenario.traffic[pattern].start_us * 1e6)

        def percentile(percent: int) -> float | None:
            rank = max(1, -(-percent * len(rows) // 100))
            return times[rank - 1] if rank <= len(times) else None

        return Summary(
            messages=len(rows),
            delivered=len(done),
            failed=sum(self.columns["failed"][row] for row in rows),
            bytes=size,
            first_us=times[0] if times else None,
            median_us=percentile(50),
            p99_us=percentile(99),
            last_us=times[-1] if times else None,
            makespan_us=None if end is None else (end - begin) * 1e-6,
            goodput_bps=None if not end or end <= begin else size * 8 / ((end - begin) * _PS),
            fairness=self._fairness(rows, begin),
        )

    def _fairness(self, rows: Sequence[int], begin: int) -> float | None:
        """Jain's index of the goodputs of the hosts that send these messages, from ``begin`` (ps) on."""
        src, size, delivered = (self.columns[name] for name in ("src", "bytes", "delivered_ps"))
        sent: dict[int, int] = {}
        until: dict[int, int] = {}
        for row in rows:
            done = delivered[row] != NEVER
            sent[src[row]] = sent.get(src[row], 0) + (size[row] if done else 0)
            until[src[row]] = max(until.get(src[row], begin), delivered[row] if done else begin)
        rates = [sent[host] / (until[host] - begin) if until[host] > begin else 0.0 for host in sent]
        squares = sum(rate * rate for rate in rates)
        return sum(rates) ** 2 / (len(rates) * squares) if len(rates) > 1 and squares else None


def _columns(columns: Mapping[str, bytes]) -> Columns:
    return {name: memoryview(data).cast("Q") for name, data in columns.items()}


def _series(scenario: Scenario, simulation: "_core.Simulation", names: Sequence[str]) -> Series | None:
    taken = simulation.series()
    if taken is None:
        return None
    columns = _columns(taken.columns)
    own = {"placed", "placed_by_plane", "groups", "sent", "waiting"}
    wanted = scenario.record.links
    links = range(len(names)) if wanted == "all" else [simulation.link_number(name) for name in wanted]
    return Series(
        columns={name: column for name, column in columns.items() if name not in own},
        patterns=taken.patterns,
        planes=taken.planes,
        layers=taken.groups // taken.planes // 2,
        links=links,
        **{name: columns[name] for name in own},
    )


def _steps(scenario: Scenario, simulation: "_core.Simulation") -> list[Step]:
    steps: list[Step] = []
    before: dict[int, float | None] = {}
    for step in simulation.steps():
        end_us = None if step.end_ps is None else step.end_ps * 1e-6
        begin = before.get(step.pattern, scenario.traffic[step.pattern].start_us)
        took = None if end_us is None or begin is None else end_us - begin
        steps.append(Step(step.pattern, step.step, end_us, took))
        before[step.pattern] = end_us
    return steps


def require_arrow() -> None:
    """Checks that frames can be made.

    Raises:
        Error: if PyArrow or NumPy is not installed.
    """
    import_optional("pyarrow.parquet", "a table in a file", "openmrc[sim]")
    import_optional("numpy", "a table in a file", "openmrc[sim]")


def _numpy() -> Any:
    return import_optional("numpy", "this", "numpy")


def _table(columns: Columns) -> Any:
    pa = import_optional("pyarrow", "to_arrow", "pyarrow")
    arrays = {
        name: pa.Array.from_buffers(pa.uint64(), len(column), [None, pa.py_buffer(column)])
        for name, column in columns.items()
    }
    return pa.table(arrays)
