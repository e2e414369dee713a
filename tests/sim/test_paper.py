"""`openmrc reproduce --figure`: the paper's figures from our runs."""

from dataclasses import replace

import pytest

from openmrc.cli import main
from openmrc.errors import ArgumentError
from openmrc.sim import paper, reproduce

image = pytest.importorskip("matplotlib.image")


@pytest.mark.parametrize("name", paper.FIGURES)
def test_every_figure_is_of_runs_of_a_row(name):
    shown = paper.FIGURES[name]
    (row,) = reproduce.rows([shown.row])
    runs = shown.panels if isinstance(shown, paper.OverTime) else shown.curves
    assert set(runs.values()) <= set(row.runs)
    assert name in paper.figures_of(row.row)


def test_a_figure_over_time_has_a_panel_for_each_run(tmp_path, capsys):
    assert main(["reproduce", "--figure", "9a", "-o", str(tmp_path / "ports.png")]) == 0
    assert capsys.readouterr().err.endswith("ports.png\n")
    one = image.imread(tmp_path / "ports.png")
    assert one.shape[1] > 800
    assert one[..., :3].std() > 0.05


def test_a_figure_by_size_has_a_panel_for_each_loss_and_less_bandwidth_with_it(tmp_path, monkeypatch):
    small = replace(
        paper.FIGURES["17"],
        curves={"MRC": "mrc-small"},
        sizes=[4096, 16384],
        losses={"none": 0.0, "2 %": 0.02},
    )
    monkeypatch.setitem(paper.FIGURES, "17", small)
    drawn = {}
    figures = paper._figures
    monkeypatch.setattr(paper, "_figures", lambda *given: drawn.setdefault(given[1], figures(*given)))
    paper.draw("17", tmp_path / "all-to-all.png")
    rates = {what: found["goodput_per_host_gbps"] for what, found in drawn.items()}
    assert rates["MRC, 16 KiB, none"] > rates["MRC, 4 KiB, none"] > 0
    assert rates["MRC, 16 KiB, 2 %"] < rates["MRC, 16 KiB, none"]
    assert (tmp_path / "all-to-all.png").stat().st_size > 10_000


def test_a_figure_that_does_not_exist_and_a_picture_of_another_kind_are_refused(tmp_path, capsys):
    with pytest.raises(ArgumentError, match=r"there is no figure 7; there are 6, 8, 9a"):
        paper.draw("7", tmp_path / "x.png")
    with pytest.raises(ArgumentError, match=r"has to end in \.png"):
        paper.draw("9a", tmp_path / "x.pdf")
    assert main(["reproduce", "--out", "x.png"]) == 2
    assert "--out: only with --figure" in capsys.readouterr().err
    for options in (["--seeds", "2"], ["--only", "P4"], ["--json"], ["--sweeps"]):
        assert main(["reproduce", "--figure", "9a", *options]) == 2
        assert "--figure: only with --out" in capsys.readouterr().err
