"""Comparisons, sweeps, and the published rows: runs of many scenarios, by API and by command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError, Error, FormatError
from openmrc.sim import check, clusters, reproduce, transports
from openmrc.sim.measures import measures
from tests.helpers.repository import ROOT

pytest.importorskip("joblib")
pytest.importorskip("pyarrow")
# Imported as `openmrc.sim.sweep` the module; `sweep.sweep` runs one.
from openmrc.sim import sweep

SMALL = """\
topology: {hosts: 16, planes: 2, radix: 8}
traffic:
  - {kind: permutation, bytes: 100000}
"""

GRID = """\
base: small.yaml
axes:
  transport: [mrc, "rocev2:qps=4:planes=1"]
  traffic.0.bytes: [50000, 200000]
  switches: [{topology.radix: 8}, {topology.radix: 16}]
seeds: [1, 2]
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    (tmp_path / "grid.yaml").write_text(GRID)
    return path


def test_a_comparison_runs_the_same_traffic_with_each_transport(small: Path) -> None:
    comparison = sim.compare(sim.load(small), ["mrc", "rocev2:qps=2", "rocev2:qps=2:planes=1"], seeds=[1, 2])
    assert list(comparison.results) == ["mrc", "rocev2:qps=2", "rocev2:qps=2:planes=1"]
    runs = [run for each in comparison.results.values() for run in each]
    assert len(runs) == 6
    assert len({bytes(run.columns["dst"]) for run in runs}) == 1
    assert {run.scenario.topology.planes * run.scenario.topology.port_rate for run in runs} == {
        200_000_000_000
    }
    assert all(run.summary().delivered == 16 for run in runs)
    alone = sim.run(transports.apply(sim.load(small), "rocev2:qps=2"))
    assert alone.totals == comparison.results["rocev2:qps=2"][0].totals


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mcr", "mcr"),
        ("rocev2:qp=3", "qp: there is no such field"),
        ("rocev2:qps", "not of the form"),
        ("rocev2:qps=0", "qps"),
        ("mrc:planes=3", "planes: 3 is neither"),
    ],
)
def test_a_transport_that_is_none_is_refused(small: Path, text: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        transports.apply(sim.load(small), text)


def test_a_comparison_that_cannot_be_is_refused_before_the_first_run(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name in the package is the function of the module of that name.
    module = sys.modules["openmrc.sim.compare"]
    monkeypatch.setattr(module, "run", lambda *_: pytest.fail("it has run"))
    for names in ("mrc,mrc", "mrc,rocev2:qps=[", "mrc:kind=uet", "mrc:mpr=1:mpr=2"):
        assert main(["compare", str(small), "--transports", names]) == 2
        assert capsys.readouterr().err.startswith("error: transports: ")
    assert main(["compare", str(small), "--transports", "mrc", "--picture", str(tmp_path / "x.foo")]) == 2
    assert "has to end in .png" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="seed: "):
        sim.compare(sim.load(small), ["mrc"], seeds=[1, 1 << 64])


def test_a_comparison_broken_off_keeps_what_was_known(small: Path) -> None:
    def progress(name: str, so_far: sim.Progress) -> None:
        if name == "uet":
            raise KeyboardInterrupt

    comparison = sim.compare(sim.load(small), ["mrc", "uet", "adaptive"], progress=progress)
    assert comparison.interrupted
    assert list(comparison.results) == ["mrc", "uet"]
    assert comparison.results["mrc"][0].summary().delivered == 16


def test_a_narrow_terminal_loses_no_digit(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sim.compare(sim.load(small), ["mrc"]).rows()
    monkeypatch.setattr("openmrc.cli._common.console", lambda **_: Console(width=40, highlight=False))
    assert main(["compare", str(small), "--transports", "mrc"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 40 for line in out.splitlines())
    assert all(cell in out for cell in rows[0])


def test_the_command_compares_side_by_side(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture, page = tmp_path / "c.png", tmp_path / "c.html"
    options = ["--transports", "mrc,rocev2:qps=4", "--picture", str(picture), "--report", str(page)]
    assert main(["compare", str(small), *options]) == 0
    out = capsys.readouterr().out
    assert "rocev2:qps=4" in out
    assert out.count("16 of 16") == 2
    assert picture.stat().st_size > 5000
    assert "Side by side" in page.read_text()
    assert main(["compare", str(small), "--transports", "mrc,rocev2:qps=4", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"mrc", "rocev2:qps=4"}


def test_a_comparison_says_which_transport_leaves_planes_unused(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planes = sim.load(small).topology.planes
    assert main(["compare", str(small), "--transports", f"mrc,rocev2:qps=1,rocev2:qps={planes}"]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert notes == [
        f"note: rocev2:qps=1 sends each message on 1 of {planes} planes: one queue pair, one plane each"
    ]


def test_a_sweep_runs_every_point_once_and_keeps_it(small: Path, tmp_path: Path) -> None:
    grid = sweep.load(tmp_path / "grid.yaml")
    first = sweep.sweep(grid, tmp_path / "points", jobs=2)
    assert first.complete
    assert (len(first.rows), first.kept) == (16, 0)
    again = sweep.sweep(grid, tmp_path / "points", jobs=2)
    assert (again.rows, again.kept) == (first.rows, 16)
    # One that is lost is run again, and comes out the same.
    next((tmp_path / "points").glob("*.json")).unlink()
    mended = sweep.sweep(grid, tmp_path / "points", jobs=1)
    assert (mended.rows, mended.kept) == (first.rows, 15)
    table = first.to_arrow()
    assert table.num_rows == 16
    assert set(table["traffic.0.bytes"].to_pylist()) == {50000, 200000}
    assert set(table["topology.radix"].to_pylist()) == {8, 16}
    direct = sim.run(
        sim.load(small).model_copy(update={"seed": 2, "traffic": [sim.Permutation(bytes=200000)]})
    )
    row = next(
        row
        for row in first.rows
        if (row["transport"], row["traffic.0.bytes"], row["topology.radix"], row["seed"])
        == ("mrc", 200000, 8, 2)
    )
    assert row["last_us"] == direct.summary().last_us


def test_a_sweep_is_written_as_csv_and_parquet(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    grid = str(tmp_path / "grid.yaml")
    assert main(["sweep", grid, "-o", str(tmp_path / "out.csv"), "-j", "1"]) == 0
    assert "16 of 16 points" in capsys.readouterr().out
    assert main(["sweep", grid, "-o", str(tmp_path / "out.parquet"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 16
    as_csv, as_parquet = (
        pyarrow.csv.read_csv(tmp_path / "out.csv"),
        pyarrow.parquet.read_table(tmp_path / "out.parquet"),
    )
    assert as_csv.column_names == as_parquet.column_names
    assert as_csv["last_us"].to_pylist() == pytest.approx(as_parquet["last_us"].to_pylist())


def test_an_interrupted_sweep_goes_on_where_it_stopped(small: Path, tmp_path: Path) -> None:
    points = tmp_path / "points"
    (tmp_path / "grid.yaml").write_text(
        f"base: small.yaml\naxes: {{traffic.0.bytes: [20000000]}}\nseeds: {list(range(1, 25))}\n"
    )
    command = [sys.executable, "-c", "import sys; from openmrc.cli import main; sys.exit(main())"]
    arguments = ["sweep", str(tmp_path / "grid.yaml"), "--points", str(points), "-j", "1", "--json"]
    process = subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # The tests may run where Ctrl-C is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while not list(points.glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    finished = len(list(points.glob("*.json")))
    assert process.returncode == 130, err.decode()
    assert "the same command goes on" in err.decode()
    assert 1 <= finished < 24
    assert len(json.loads(out)) == finished
    rest = sweep.sweep(sweep.load(tmp_path / "grid.yaml"), points, jobs=2)
    assert rest.complete
    assert rest.kept == finished


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("traffic.0.bytes: [50000", "traffic.0.bites: [50000"), "bites: there is no such field"),
        (
            ("traffic.0.bytes", "traffic.7.bytes"),
            r"grid.yaml:4: traffic.7.bytes: the scenario has no such place",
        ),
        (("radix: 16", "radix: 1"), "radix"),
        (("base: small.yaml", "base: small.yaml\nbasis: 3"), "2: basis: there is no such field"),
        (("rocev2:qps=4:planes=1", "rocev3"), "rocev3"),
    ],
)
def test_a_grid_that_cannot_run_is_refused_before_any_point_is(
    small: Path, tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    assert change[0] in GRID
    (tmp_path / "grid.yaml").write_text(GRID.replace(*change))
    with pytest.raises((ArgumentError, FormatError), match=words):
        sweep.sweep(sweep.load(tmp_path / "grid.yaml"), tmp_path / "points", jobs=1)
    assert not list((tmp_path / "points").glob("*.json"))


def test_a_grid_that_needs_more_memory_than_there_is_is_refused(small: Path, tmp_path: Path) -> None:
    switches = "switches: [{topology.radix: 8}, {topology.radix: 16}]"
    huge = GRID.replace(switches, "switches: [{topology.hosts: 60000, topology.radix: 512}]")
    huge = huge.replace("traffic.0.bytes: [50000, 200000]", "traffic: [[{kind: all-to-all, bytes: 1}]]")
    (tmp_path / "grid.yaml").write_text(huge)
    with pytest.raises(ArgumentError, match="memory"):
        sweep.sweep(sweep.load(tmp_path / "grid.yaml"), tmp_path / "points")


def test_a_killed_worker_is_told_in_a_line_and_what_was_finished_is_kept(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = sweep.load(tmp_path / "grid.yaml")

    def call(function: Any, arguments: Any, **options: object) -> Any:
        given = iter(arguments)
        for _ in range(3):
            yield function(*next(given))
        # What loky raises is made where a worker dies: here one does, by its own hand.
        yield from clusters_call(die, [()], **options)

    clusters_call = clusters.call
    monkeypatch.setattr(clusters, "call", call)
    with pytest.raises(Error, match="3 of 16 points are kept"):
        sweep.sweep(grid, tmp_path / "points", jobs=2)
    monkeypatch.undo()
    assert sweep.sweep(grid, tmp_path / "points", jobs=2).kept == 3


def die() -> None:
    """In a worker: as the kernel ends a process when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_grid_of_more_points_than_can_be_kept_is_refused_at_once(small: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(
        "base: small.yaml\naxes:\n"
        + "".join(f"  traffic.{n}.bytes: {list(range(1, 11))}\n" for n in range(9))
    )
    with pytest.raises(
        FormatError, match=r"grid.yaml:2: axes: a grid of 1,000,000,000 points; at most 1,000,000"
    ):
        sweep.sweep(sweep.load(tmp_path / "grid.yaml"), tmp_path / "points")


def test_a_file_of_a_point_that_a_crash_left_empty_is_run_again(small: Path, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("base: small.yaml\nseeds: [1, 2, 3]\n")
    grid = sweep.load(tmp_path / "grid.yaml")
    whole = sweep.sweep(grid, tmp_path / "points", jobs=1)
    next((tmp_path / "points").glob("*.json")).write_text("")
    again = sweep.sweep(grid, tmp_path / "points", jobs=1)
    assert (again.kept, again.rows) == (2, whole.rows)


def test_a_point_carries_the_flows_of_its_file_to_machines_that_have_none(tmp_path: Path) -> None:
    (tmp_path / "flows.csv").write_text("0,1,5000\n")
    (tmp_path / "small.yaml").write_text(
        SMALL.replace("permutation, bytes: 100000", "flows, file: flows.csv")
    )
    scenario = sim.load(tmp_path / "small.yaml")
    carried = check.with_files(scenario)
    (tmp_path / "flows.csv").unlink()
    assert sim.run(carried).summary().bytes == 5000


@pytest.mark.parametrize(("package", "option"), [("distributed", "--dask"), ("ray", "--ray")])
def test_the_same_sweep_runs_on_a_cluster(small: Path, tmp_path: Path, package: str, option: str) -> None:
    pytest.importorskip(package)
    here = sweep.sweep(sweep.load(tmp_path / "grid.yaml"), tmp_path / "here", jobs=1)
    # In a process of its own: what a cluster's client leaves running is not this one's.
    command = "import sys; from openmrc.cli import main; sys.exit(main())"
    arguments = ["sweep", str(tmp_path / "grid.yaml"), option, "local", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == list(here.rows)


@pytest.mark.parametrize(("package", "option"), [("distributed", "--dask"), ("ray", "--ray")])
def test_an_address_without_a_cluster_is_told_in_a_line(
    small: Path, tmp_path: Path, package: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(package)
    assert main(["sweep", str(tmp_path / "grid.yaml"), option, "nowhere"]) == 2
    assert f"error: {option} nowhere: no cluster there" in capsys.readouterr().err


def test_every_published_row_is_there_and_its_scenarios_can_run() -> None:
    rows = reproduce.rows()
    names = [*(f"P{number}" for number in range(1, 14)), "P14A", "P14B", "P14C", "P14E"]
    assert [row.row for row in rows] == [*names, *(f"P{number}" for number in range(15, 21))]
    for row in rows:
        for size in ({}, {"full": True}, {"reduced": True}):
            scenarios = row.scenarios(**size)
            assert set().union(*(claim.runs() for claim in row.claims)) <= set(scenarios)


def test_a_row_is_judged_by_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--only", "P2", "--seeds", "2", "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)
    (claim,) = outcome["claims"]
    values = [
        figures["across-t1"]["last_us"] - figures["one-t0"]["last_us"] for figures in outcome["figures"]
    ]
    assert claim["values"] == pytest.approx(values)
    assert len(values) == 2
    assert claim["verdict"] == "calibrated"
    assert main(["reproduce", "--only", "P2", "--seeds", "1", "--markdown"]) == 0
    assert f"| {claim['says']} | {claim['ours']:.4g} us |" in capsys.readouterr().out
    assert main(["reproduce", "--only", "P2", "--markdown", "--json"]) == 2
    (row,) = reproduce.rows(["p2"])
    slow = row.model_copy(update={"base": {**row.base, "network": {"switch_latency_ns": 5000}}})
    outcome = reproduce.reproduce(slow, seeds=1)
    assert not outcome.agrees
    with pytest.raises(ArgumentError, match="P99"):
        reproduce.rows(["P99"])


def test_a_row_that_is_interrupted_keeps_what_is_known() -> None:
    (row,) = reproduce.rows(["P2"])
    whole = reproduce.reproduce(row, seeds=1)
    first, second = row.scenarios()

    def interrupt(name: str, _: object) -> None:
        if f"{second}," in name:
            raise KeyboardInterrupt

    outcome = reproduce.reproduce(row, seeds=2, progress=interrupt)
    assert outcome.interrupted
    (figures,) = outcome.figures
    assert set(figures) == {first}
    assert figures[first] == whole.figures[0][first]
    assert outcome.verdicts[0].ours is None
    assert outcome.took_s > 0


def test_measures_are_those_of_the_run() -> None:
    scenario = sim.Scenario.model_validate(
        {
            "topology": {"hosts": 16, "planes": 4, "radix": 16},
            "record": {"series": True, "events": True},
            "traffic": [{"kind": "collective", "operation": "ring-all-reduce", "bytes": 16 << 20}],
            "faults": [
                {
                    "kind": "down",
                    "targets": [f"h1:p{p}--p{p}/t0-0:down1" for p in range(3)],
                    "at_us": 200,
                    "until_us": 300,
                }
            ],
        }
    )
    # A host with one port of four: the job is as slow as that host, then goes on.
    results = sim.run(scenario)
    figures = measures(results)
    makespan = results.summary().makespan_us
    assert makespan is not None
    assert figures["bus_gbps"] == pytest.approx((16 << 20) * 8 * 2 * 15 / 16 / makespan / 1e3)
    assert figures["during_gbps"] < 0.9 * figures["before_gbps"]
    assert figures["after_gbps"] == pytest.approx(figures["before_gbps"], rel=0.1)


GRIDS = sorted((ROOT / "examples" / "grids").glob("*.yaml"))


@pytest.mark.parametrize("file", GRIDS, ids=lambda file: file.stem)
def test_every_example_of_a_grid_runs_to_its_end(file: Path, tmp_path: Path) -> None:
    result = sweep.sweep(sweep.load(file), tmp_path / "points", jobs=2)
    assert result.complete
    assert all(row["delivered"] == row["messages"] > 0 for row in result.rows)
