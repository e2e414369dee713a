"""The arithmetic of the benchmark table: ratios within a repetition, missing numbers, dips, the document."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.repository import ROOT

sys.path.insert(0, str(ROOT / "benches"))

import report
from dips import longest_dip
from figures import FIGURES, GROWTH, NO_BOUND, Figure, above, at_least, at_most, below, needed
from instruments import Absent, Instrument, NotMeasured


def instrument(name):
    return Instrument(name, name, lambda bench: {})


RATIO = Figure("ours / theirs", at_least(0.8), (instrument("ours"), "gbps"), (instrument("theirs"), "gbps"))


def repetition(ours, theirs):
    return {"ours": {"gbps": ours}, "theirs": {"gbps": theirs}}


def test_a_ratio_is_taken_within_each_repetition():
    outcome = report.evaluate(RATIO, [repetition(8, 10), repetition(1, 1), repetition(30, 50)])
    assert outcome.values == [0.8, 1.0, 0.6]
    assert outcome.reached is True


def test_a_figure_missing_once_is_not_measured():
    missing = {**repetition(8, 10), "ours": NotMeasured("no such command")}
    outcome = report.evaluate(RATIO, [repetition(8, 10), missing])
    assert (outcome.values, outcome.reached, outcome.reason) == ([], None, "no such command")


def test_fewer_than_five_repetitions_are_said_to_be_too_few():
    def text(count):
        repetitions = [repetition(8, 10)] * count
        return report.markdown([report.evaluate(RATIO, repetitions)], repetitions, {})

    assert "medians of 4 repetitions, too few to prove a bound:" in text(4)
    assert "medians of 5 repetitions:" in text(5)


def test_a_reference_of_zero_is_not_measured():
    outcome = report.evaluate(RATIO, [repetition(8, 0)])
    assert outcome.values == []
    assert "theirs" in outcome.reason


@pytest.mark.parametrize(
    ("target", "inside", "outside"),
    [
        (at_least(0.8), 0.8, 0.79),
        (at_most(1.5), 1.5, 1.51),
        (above(1.0), 1.01, 1.0),
        (below(4096), 4095, 4096),
    ],
)
def test_limits_are_read_as_written(target, inside, outside):
    assert target.holds(inside)
    assert not target.holds(outside)


def test_every_instrument_runs_once_per_repetition():
    names = [each.name for each in needed(FIGURES)]
    assert len(names) == len(set(names))
    wanted = {each.name for figure in FIGURES for each in figure.instruments()}
    assert wanted | {each.name for each in GROWTH} == set(names)


def test_the_table_shows_reached_missed_and_not_measured():
    figures = [RATIO, Figure("absent", at_most(1), (instrument("absent"), "us"))]
    repetitions = [{**repetition(7, 10), "absent": NotMeasured("a | b")}]
    outcomes = [report.evaluate(each, repetitions) for each in figures]
    lines = report.markdown(outcomes, repetitions, {"cpu": "x"}).splitlines()
    assert "| ours / theirs | >= 0.8 | 0.7 | 0.7 .. 0.7 | **missed** |" in lines
    assert "| absent | <= 1 | - | - | not measured: a \\| b |" in lines


def test_an_absent_tool_is_reported_as_absent_and_fails_no_check():
    broken = report.evaluate(RATIO, [{**repetition(7, 10), "theirs": NotMeasured("it crashed")}])
    absent = report.evaluate(RATIO, [{**repetition(7, 10), "theirs": Absent("iperf3 is not installed")}])
    assert (broken.failed, absent.failed) == (True, False)
    repetitions = [{**repetition(7, 10), "theirs": Absent("iperf3 is not installed")}]
    lines = report.markdown([absent], repetitions, {}).splitlines()
    assert "| ours / theirs | >= 0.8 | - | - | absent: iperf3 is not installed |" in lines
    assert "| theirs | absent: iperf3 is not installed |" in lines


def test_a_comparison_without_a_bound_is_neither_reached_nor_missed():
    figure = Figure("ours / theirs", NO_BOUND, RATIO.subject, RATIO.reference)
    for outcome in (
        report.evaluate(figure, [repetition(1, 10)]),
        report.evaluate(figure, [{**repetition(1, 10), "theirs": NotMeasured("it crashed")}]),
    ):
        assert (outcome.reached, outcome.failed) == (None, False)
    lines = report.markdown([report.evaluate(figure, [repetition(1, 10)])], [repetition(1, 10)], {})
    assert "| ours / theirs | - | 0.1 | 0.1 .. 0.1 |  |" in lines.splitlines()


def test_a_missed_bound_fails_the_check():
    assert report.evaluate(RATIO, [repetition(7, 10)]).failed
    assert not report.evaluate(RATIO, [repetition(8, 10)]).failed


def test_the_document_keeps_everything_outside_the_markers(tmp_path):
    document = tmp_path / "benchmarks.md"
    begin, end = report.marks("results")
    document.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    for table in ("new\n", "newer\n"):
        report.update_docs(document, "results", table)
        assert document.read_text() == f"before\n{begin}\n{table}{end}\nafter\n"
    document.write_text("no markers")
    with pytest.raises(ValueError, match="lacks"):
        report.update_docs(document, "results", "new\n")


def test_the_repository_document_has_the_markers():
    text = (ROOT / "docs/benchmarks.md").read_text()
    for mark in (mark for section in {each.section for each in FIGURES} for mark in report.marks(section)):
        assert text.count(mark) == 1


@given(
    steady=st.integers(100, 10**6),
    before=st.integers(1, 30),
    down=st.integers(0, 9),
    after=st.integers(20, 60),
    floor=st.floats(0, 0.79),
)
def test_a_dip_is_as_long_as_the_intervals_below_the_share(steady, before, down, after, floor):
    samples = [2 * steady] * before + [int(steady * floor)] * down + [steady] * after
    assert longest_dip(samples, 0.5, before * 0.5, 0.8) == down * 0.5


def test_a_slow_interval_before_the_fault_is_no_dip():
    assert longest_dip([0] * 10 + [100] * 20, 1.0, 10.0, 0.8) == 0.0


def test_two_dips_count_as_the_longer_one():
    samples = [10, 10, 100, 10, 10, 10] + [100] * 30
    assert longest_dip(samples, 1.0, 0.0, 0.8) == 3.0


def test_a_run_that_ends_with_the_fault_says_so():
    with pytest.raises(ValueError, match="too few"):
        longest_dip([100] * 10, 1.0, 5.0, 0.8)
