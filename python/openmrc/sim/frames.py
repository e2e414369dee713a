"""Results as Arrow tables: one table for each subject, times in microseconds, links by name."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from openmrc.extras import import_optional
from openmrc.sim import collectives
from openmrc.sim.collectives import CollectiveStep, CollectiveTime
from openmrc.sim.results import NEVER, LogEvent, Results, Series, Step, _table

if TYPE_CHECKING:
    import numpy as np

DIRECTIONS = ("up", "down")


def of(results: Results) -> dict[str, Any]:
    """Every table that can be made of these results, by name."""
    tables = {"flows": _flows(results)}
    if results.links:
        tables["links"] = _links(results)
        tables["planes"] = _planes(results)
    if results.evs is not None:
        tables["evs"] = _table(results.evs)
    if results.series is not None:
        tables["series"] = _series(results.series)
        if results.series.links:
            tables["link_series"] = _link_series(results, results.series)
    if results.scenario.record.events:
        tables["events"] = _rows(results.log, LogEvent)
    if results.steps:
        tables["steps"] = _rows(results.steps, Step)
    if results.collectives:
        tables["collectives"] = _rows(results.collectives, CollectiveTime)
        tables["collective_steps"] = _rows(
            collectives.steps(results.scenario, results.columns), CollectiveStep
        )
    return tables


def _pa() -> Any:
    return import_optional("pyarrow", "this", "pyarrow")


def _np() -> Any:
    return import_optional("numpy", "this", "numpy")


def _rows(rows: Any, of: type) -> Any:
    names = list(of.__dataclass_fields__)  # type: ignore[attr-defined]
    values = [asdict(row) for row in rows]
    return _pa().table({name: [value[name] for value in values] for name in names})


def _flows(results: Results) -> Any:
    np, pa = _np(), _pa()
    columns = results.to_numpy()
    table = {name: columns[name] for name in ("src", "dst", "bytes", "pattern")}
    for name in ("posted", "delivered", "completed"):
        times = columns[f"{name}_ps"]
        table[f"{name}_us"] = pa.array(times * 1e-6, mask=times == NEVER)
    delivered = columns["delivered_ps"]
    took = np.where(delivered == NEVER, 0, delivered - np.minimum(columns["posted_ps"], delivered))
    table["completion_us"] = pa.array(took * 1e-6, mask=delivered == NEVER)
    table["failed"] = columns["failed"].astype(bool)
    return pa.table(table)


def _link_arrays(results: Results) -> "dict[str, np.ndarray[Any, Any]]":
    np = _np()
    return {name: np.frombuffer(column, dtype=np.uint64) for name, column in results.links.items()}


def _links(results: Results) -> Any:
    np, pa = _np(), _pa()
    columns = _link_arrays(results)
    down = columns.pop("down")
    table = {
        "link": pa.array([name for name in results.link_names for _ in DIRECTIONS]),
        "direction": pa.array(np.where(down == 1, *reversed(DIRECTIONS))),
        **columns,
    }
    capacity = results.scenario.topology.port_rate / 8 * results.totals["end_ps"] * 1e-12
    table["load"] = columns["bytes"] / max(capacity, 1.0)
    return pa.table(table)


def _planes(results: Results) -> Any:
    """Sums by plane: bytes on the hosts' cables and above, losses, and payload if there is a time series."""
    np, pa = _np(), _pa()
    columns = _link_arrays(results)
    planes = results.scenario.topology.planes
    of_plane = columns["plane"].astype(np.int64)

    def total(values: Any, where: Any) -> Any:
        return np.bincount(of_plane[where], weights=values[where], minlength=planes).astype(np.uint64)

    up, edge = columns["down"] == 0, columns["layer"] == 0
    table = {
        "plane": np.arange(planes),
        "host_tx_bytes": total(columns["bytes"], up & edge),
        "host_rx_bytes": total(columns["bytes"], ~up & edge),
        "fabric_bytes": total(columns["bytes"], ~edge),
    }
    for name in ("marked", "trimmed", "dropped", "lost"):
        if name in columns:
            table[name] = total(columns[name], up | ~up)
    if results.series is not None:
        table["payload_bytes"] = results.series.array("placed_by_plane")[-1]
    return pa.table(table)


def _series(series: Series) -> Any:
    """One row for each sample: rates and counters since the sample before."""
    np, pa = _np(), _pa()
    time = np.frombuffer(series.columns["time_ps"], dtype=np.uint64)
    seconds = np.diff(time, prepend=0) * 1e-12
    table: dict[str, Any] = {"time_us": time * 1e-6}
    table["goodput_bps"] = rate(series.array("placed").sum(axis=1), seconds)
    for name, kind, count in (
        ("pattern", "placed", series.patterns),
        ("plane", "placed_by_plane", series.planes),
    ):
        for i in range(count):
            table[f"goodput_{name}{i}_bps"] = rate(series.array(kind)[:, i], seconds)
    groups = series.array("groups")
    table["queued_bytes"] = groups[..., 1].sum(axis=(1, 2, 3))
    table["longest_queue_bytes"] = groups[..., 2].max(axis=(1, 2, 3))
    for name, column in series.columns.items():
        if name not in ("time_ps", "longest_queue"):
            table[name] = np.diff(np.frombuffer(column, dtype=np.uint64), prepend=np.uint64(0))
    return pa.table(table)


def rate(counter: Any, seconds: Any) -> Any:
    """Bits per second between samples of a counter of bytes."""
    np = _np()
    grown = np.maximum(np.diff(counter.astype(np.float64), prepend=0.0, axis=0), 0.0)
    shape = (-1,) + (1,) * (grown.ndim - 1)
    return grown * 8 / np.maximum(seconds, 1e-15).reshape(shape)


def _link_series(results: Results, series: Series) -> Any:
    np, pa = _np(), _pa()
    time = np.frombuffer(series.columns["time_ps"], dtype=np.uint64)
    samples, links = len(time), len(series.links)
    names = pa.array([results.link_names[number] for number in series.links])
    cells = pa.DictionaryArray.from_arrays(
        np.tile(np.repeat(np.arange(links, dtype=np.int32), 2), samples), names
    )
    directions = pa.DictionaryArray.from_arrays(
        np.tile(np.array([0, 1], dtype=np.int8), samples * links), pa.array(DIRECTIONS)
    )
    seconds = np.diff(time, prepend=0) * 1e-12
    return pa.table(
        {
            "time_us": np.repeat(time * 1e-6, links * 2),
            "link": cells,
            "direction": directions,
            "load": (rate(series.array("sent"), seconds) / results.scenario.topology.port_rate).reshape(-1),
            "queued_bytes": series.array("waiting").reshape(-1),
        }
    )
