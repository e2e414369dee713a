"""Step functions of overlapping outages, against counting at every time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from openmrc.jobs.steps import apart, common, levels, union, worst

OUTAGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(1, 10)), max_size=30)
MOMENTS = np.arange(0, 45) + 0.5


def arrays(outages):
    part, begin, seconds = np.array(outages, dtype=np.int64).reshape(-1, 3).T
    return part, begin.astype(float), (begin + seconds).astype(float)


@given(OUTAGES)
def test_a_union_covers_what_its_spans_cover_and_its_spans_are_apart(outages):
    _, begin, end = arrays(outages)
    spans = union(begin, end)
    covered = spans.steps().at(MOMENTS)
    expected = [any(b <= moment < e for b, e in zip(begin, end, strict=True)) for moment in MOMENTS]
    assert covered.tolist() == expected
    assert (spans.begin[1:] > spans.end[:-1]).all()


@given(OUTAGES)
def test_the_worst_part_is_that_with_most_outages_at_a_time(outages):
    part, begin, end = arrays(outages)

    def at(moment):
        down = [p for p, b, e in zip(part, begin, end, strict=True) if b <= moment < e]
        return max((down.count(p) for p in down), default=0)

    expected = [at(moment) for moment in MOMENTS]
    assert worst(part, begin, end).at(MOMENTS).tolist() == expected
    spans = levels(part, begin, end)
    for number, each in enumerate(spans, 1):
        assert each.steps().at(MOMENTS).tolist() == [level >= number for level in expected]


@given(OUTAGES)
def test_outages_of_a_part_are_merged_and_those_of_others_are_not(outages):
    parts, begins, ends = apart(*arrays(outages))
    part, begin, end = arrays(outages)
    for number in range(4):
        assert (begins[parts == number][1:] >= ends[parts == number][:-1]).all()
        merged = union(begins[parts == number], ends[parts == number])
        assert merged.steps().at(MOMENTS).tolist() == [
            any(p == number and b <= moment < e for p, b, e in zip(part, begin, end, strict=True))
            for moment in MOMENTS
        ]


@given(OUTAGES, OUTAGES)
def test_common_times_are_all_at_which_something_changes(one, two):
    functions = [union(*arrays(each)[1:]).steps() for each in (one, two)]
    times = common(functions, 20.0)
    assert times[0] == 0
    assert (np.diff(times) > 0).all()
    assert times[-1] < 20
    assert set(times) == {0.0} | {t for each in functions for t in each.times if t < 20}
