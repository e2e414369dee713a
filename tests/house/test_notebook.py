"""What a notebook shows: tables and pictures instead of walls of text, and frames of pandas."""

from pathlib import Path

import pytest

from openmrc import sim
from openmrc.fabric import Fabric, plan
from openmrc.sim import sweep as sweeping
from tests.helpers.repository import ROOT

pytest.importorskip("matplotlib")
pytest.importorskip("pyarrow")

LAB = ROOT / "examples" / "fabrics" / "lab.yaml"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def scenario() -> sim.Scenario:
    return sim.Scenario.model_validate(
        {
            "topology": {"hosts": 16, "planes": 2, "radix": 8},
            "traffic": [{"kind": "permutation", "bytes": 1 << 18}],
            "record": {"series": True, "events": True, "links": "all"},
        }
    )


@pytest.fixture(scope="module")
def results(scenario: sim.Scenario) -> sim.Results:
    return sim.run(scenario)


def test_a_line_of_text_says_what_an_object_is(results: sim.Results, scenario: sim.Scenario) -> None:
    comparison = sim.compare(scenario, ["mrc"])
    for each in (
        results,
        results.series,
        results.frames(),
        results.figures(),
        comparison,
        plan(Fabric.load(LAB)),
    ):
        assert len(repr(each)) < 200
        assert "\n" not in repr(each)
        assert "memory at" not in repr(each)
    assert repr(results).startswith("<Results: 16 of 16 messages delivered, the last after ")


def test_results_are_a_table_with_pictures(results: sim.Results) -> None:
    shown = results._repr_html_()
    assert "<td style='text-align:left'><b>messages delivered</b></td>" in shown
    assert shown.count("data:image/png;base64,") == len(results.figures()) >= 4
    plain = sim.run(results.scenario.model_copy(update={"record": sim.Record()}))
    assert "<img" not in plain._repr_html_()


def test_a_figure_shows_itself(results: sim.Results) -> None:
    from openmrc.sim import pictures

    assert pictures.goodput(results)._repr_png_().startswith(PNG)
    assert all(figure._repr_png_().startswith(PNG) for figure in results.figures().values())


def test_plans_scenarios_comparisons_and_sweeps_are_shown_too(scenario: sim.Scenario, tmp_path: Path) -> None:
    assert "T0 switches" in plan(Fabric.load(LAB))._repr_html_()
    assert "kind: permutation" in scenario._repr_html_()
    comparison = sim.compare(scenario, ["mrc", "uet"])
    assert "<b>uet</b>" in comparison._repr_html_()
    grid = sweeping.Grid(base=scenario.model_dump(mode="json", exclude_unset=True), axes={"seed": [1, 2]})
    swept = sweeping.sweep(grid, tmp_path, jobs=1)
    assert "median_us" in swept._repr_html_()
    assert repr(swept) == "<Sweep: 2 of 2 points>"


def test_pandas_gets_frames_as_one_expects(
    results: sim.Results, scenario: sim.Scenario, tmp_path: Path
) -> None:
    pd = pytest.importorskip("pandas")
    flows = results.to_pandas()
    assert list(flows.columns[:3]) == ["src", "dst", "bytes"]
    assert flows.completion_us.max() == pytest.approx(results.summary().last_us)
    assert flows.failed.dtype == bool
    frames = results.frames().to_pandas()
    assert set(frames) == set(results.frames())
    assert frames["series"].set_index("time_us").goodput_bps.max() > 1e9
    # What did not happen is missing, and no large number.
    cut = sim.run(scenario.model_copy(update={"limit_us": 5.0})).to_pandas()
    assert cut.delivered_us.isna().all()
    comparison = sim.compare(scenario, ["mrc", "uet"]).to_pandas()
    assert comparison.groupby("transport").last_us.max().gt(0).all()
    assert isinstance(comparison, pd.DataFrame)


def test_making_the_page_of_a_plan_shows_nothing_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    def displayed(*_: object) -> None:
        raise AssertionError("shown besides what is returned")

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", displayed)
    assert "host-T0 links" in plan(Fabric.load(LAB))._repr_html_()
