"""How much a loop loses now: counts that reach back to when its loss changed."""

import random

import pytest

from openmrc.localise import Recent


def fed(intervals, most=40):
    recent = Recent(most)
    for sent, lost in intervals:
        recent.add(sent, lost)
    return recent.sent, recent.lost


def test_a_healthy_loop_is_remembered_for_the_whole_window():
    assert fed([(20, 0)] * 60) == (800, 0)


def test_a_cut_link_is_known_as_cut_with_its_first_interval():
    assert fed([(20, 0)] * 40 + [(20, 20)]) == (20, 20)


def test_a_cut_in_the_middle_of_an_interval_does_not_stay_half_a_cut():
    assert fed([(20, 0)] * 40 + [(20, 9), (20, 20), (20, 20)]) == (40, 40)


def test_a_repaired_link_is_known_as_good_with_its_first_interval():
    assert fed([(20, 0)] * 9 + [(20, 20)] * 9 + [(20, 0)]) == (20, 0)


@pytest.mark.parametrize("lost", range(21))
def test_a_repair_in_the_middle_of_an_interval_leaves_no_loss(lost):
    assert fed([(20, 0)] * 9 + [(20, 20)] * 9 + [(20, lost), (20, 0), (20, 0)])[1] == 0


def test_a_loss_that_becomes_less_is_still_seen():
    sent, lost = fed([(20, 20)] * 20 + [(20, 2)] * 20)
    assert (sent, lost) == (380, 38)


def test_intervals_without_probes_change_nothing():
    assert fed([(20, 20), (0, 0), (0, 0), (20, 20)]) == (40, 40)


@pytest.mark.parametrize("loss", [0.002, 0.01, 0.1, 0.5])
def test_a_steady_loss_is_added_up(loss):
    shares, lengths = [], []
    for seed in range(100):
        rng = random.Random(seed)
        sent, lost = fed([(50, sum(rng.random() < loss for _ in range(50))) for _ in range(40)])
        shares.append(lost / sent)
        lengths.append(sent)
    assert sum(shares) / len(shares) == pytest.approx(loss, rel=0.1)
    assert sum(length == 2000 for length in lengths) >= 90, "a change is seldom seen where there is none"
