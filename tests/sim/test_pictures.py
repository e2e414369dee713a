"""Pictures of runs: one unit in all of them, curves and no combs, names of faults above the curves."""

from typing import Any

import pytest

from openmrc import sim
from openmrc.sim import report
from openmrc.sim.text import gbps

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")

from openmrc.sim import pictures  # noqa: E402


@pytest.fixture(scope="module")
def results() -> sim.Results:
    """Full load of 51.2 Tb/s, one packet a sample and port, while ports of hosts are down."""
    return sim.run(
        sim.Scenario.model_validate(
            {
                "topology": {"hosts": 64, "nic": {"rate": "800G"}, "planes": 8, "tiers": 1, "radix": 64},
                "traffic": [{"kind": "permutation", "bytes": 1 << 23}],
                "faults": [
                    {
                        "kind": "flap",
                        "targets": ["h0:p1"],
                        "at_us": 30,
                        "down_us": 10,
                        "up_us": 10,
                        "times": 2,
                    },
                    {"kind": "down", "targets": ["h9:p3"], "at_us": 35, "until_us": 60},
                ],
                "record": {"series": True, "events": True, "links": "all"},
            }
        )
    )


def axes(figure: Any) -> Any:
    return figure.axes[0]


def test_all_rates_of_a_run_have_one_unit(results: sim.Results) -> None:
    assert {axes(draw(results)).get_ylabel() for draw in (pictures.goodput, pictures.planes)} == {"Tb/s"}
    assert gbps(51.2e12) == "51.2 Tb/s"
    assert gbps(400e9) == "400.0 Gb/s"


def test_a_curve_of_rates_is_no_comb(results: sim.Results) -> None:
    (line,) = axes(pictures.goodput(results)).lines[:1]
    times, rates = line.get_data()
    full = rates[(times > 10) & (times < 70)]
    assert len(full) > 10
    assert full.min() > 0.8 * full.max()
    # What is drawn is what has been delivered.
    assert np.trapezoid(rates, times) * 1e6 / 8 == pytest.approx(results.summary().bytes, rel=0.1)


def test_no_link_is_drawn_beyond_its_rate(results: sim.Results) -> None:
    assert pictures._rates(results, "sent")[1].max() <= 1.05 * results.scenario.topology.port_rate


def test_names_of_faults_stand_above_the_curves(results: sim.Results) -> None:
    for draw in (pictures.goodput, pictures.planes, pictures.queues):
        drawn = axes(draw(results))
        named = [text for text in drawn.texts if "down" in text.get_text()]
        assert len(named) == 2
        lowest = min(text.xy[1] for text in named) - 0.06
        curves = [line.get_ydata() for line in drawn.lines if len(line.get_ydata()) > 2]
        highest = max((np.max(curve) for curve in curves), default=0.0) / drawn.get_ylim()[1]
        assert highest < lowest


def test_bars_have_numbers_with_units_and_no_powers_of_ten(results: sim.Results) -> None:
    training = sim.Scenario.model_validate(
        {
            "topology": {"hosts": 16, "planes": 2, "radix": 16},
            "traffic": [{"kind": "training", "data": 4, "steps": 2, "forward_us": 2000, "backward_us": 4000}],
        }
    )
    figures = dict(sim.compare(training, ["mrc"]).figures())
    texts = [text.get_text() for text in axes(figures["Step times"]).texts]
    assert texts
    assert all(text.endswith(" ms") and "e+" not in text for text in texts)
    assert axes(figures["Step times"]).get_xlabel() == "ms"


def test_the_line_below_a_report_counts_in_english(results: sim.Results) -> None:
    assert "64 hosts, 8 x 100 Gb/s, 1 tier;" in report.lead(results.scenario)
