"""Path selectors and congestion controllers of one's own, named by a transport, in runs and sweeps."""

import json
import shutil
import sys

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError
from openmrc.sim import sweep, transports
from tests.helpers.repository import ROOT

SCENARIO = "topology: {hosts: 32, planes: 4, radix: 16}\ntraffic: {kind: permutation, bytes: 1M}\n"
SELECTOR = "path_selector=own_classes.RoundRobin"
CONTROL = "congestion=own_classes.Aimd"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A scenario with the example's classes beside it."""
    monkeypatch.delitem(sys.modules, "own_classes", raising=False)
    shutil.copy(ROOT / "examples" / "own_classes.py", tmp_path)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    return tmp_path / "scenario.yaml"


@pytest.mark.parametrize("kind", ["mrc", "uet"])
@pytest.mark.parametrize("option", [SELECTOR, CONTROL, f"{SELECTOR}:{CONTROL}"])
def test_a_named_class_is_the_one_handed_over(file, kind, option):
    scenario = transports.apply(sim.load(file), kind)
    named = sim.run(transports.apply(scenario, f"{kind}:{option}"))
    classes = vars(sys.modules["own_classes"])
    handed = {"path_selector": classes["RoundRobin"], "congestion": classes["Aimd"]}
    over = sim.run(scenario, **{name: each for name, each in handed.items() if name in option})
    assert named.totals == over.totals
    assert bytes(named.columns["delivered_ps"]) == bytes(over.columns["delivered_ps"])
    assert named.totals != sim.run(scenario).totals
    assert named.summary().delivered == 32


def test_compare_runs_a_class_beside_the_scenario_from_any_directory(
    file, tmp_path_factory, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["compare", str(file), "--transports", f"uet,uet:{SELECTOR}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, own = (found[name][0] for name in ("uet", f"uet:{SELECTOR}"))
    assert first != own


def test_a_kept_point_is_run_again_when_its_class_has_changed(file, tmp_path):
    grid = tmp_path / "grid.yaml"
    base = "\n".join(f"  {line}" for line in SCENARIO.splitlines())
    grid.write_text(f'base:\n{base}\naxes:\n  transport: [mrc, "mrc:{CONTROL}"]\n')

    def swept():
        return sweep.sweep(sweep.load(grid), tmp_path / "kept", jobs=1)

    first, again = swept(), swept()
    assert (first.kept, again.kept) == (0, 2)
    classes = tmp_path / "own_classes.py"
    classes.write_text(classes.read_text().replace("rate_bps / 8", "rate_bps / 9"))
    changed = swept()
    assert changed.kept == 1
    assert changed.rows[0] == first.rows[0]
    assert changed.rows[1]["last_us"] != first.rows[1]["last_us"]


@pytest.mark.parametrize(
    ("transport", "error"),
    [
        (f"rocev2:{SELECTOR}", "path_selector: there is no such field"),
        (
            "mrc:path_selector=nowhere.X",
            "scenario.yaml: transport.path_selector: nowhere.X: there is no module",
        ),
        ("mrc:congestion=own_classes.X", "transport.congestion: own_classes.X: own_classes has no class X"),
        ("mrc:congestion=X", "'X' is not of the form module.Class"),
        ("mrc:congestion=os.system", "os has no class system"),
        ("mrc:congestion=broken.X", "broken raises ZeroDivisionError: division by zero"),
        (f"mrc:fixed_window=65536:{CONTROL}", "congestion: the transport has a fixed_window"),
    ],
)
def test_what_is_no_class_is_named_before_anything_runs(file, transport, error):
    (file.parent / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ArgumentError) as raised:
        sim.compare(sim.load(file), ["mrc", transport])
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


def test_more_threads_than_one_are_refused(file):
    scenario = transports.apply(sim.load(file), f"mrc:{SELECTOR}")
    with pytest.raises(ArgumentError, match="threads: 2 threads would wait for each other"):
        sim.run(scenario.model_copy(update={"threads": 2}))
