"""How much a loop loses now: counts that reach back to when its loss changed."""

import math
import random

import pytest

from openmrc.localise import Recent
from openmrc.localise.recent import CHANGE


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
    # Nor in front of an interval in the middle of which the link is repaired.
    assert fed([(20, 20)] * 9 + [(0, 0), (20, 3), (20, 0), (20, 0)]) == (40, 0)


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


def test_quiet_intervals_before_are_probes_without_a_loss():
    recent = Recent(3, quiet=20)
    assert (recent.sent, recent.lost) == (60, 0)
    recent.add(10, 0)
    assert (recent.sent, recent.lost) == (50, 0)
    recent.add(10, 10)
    assert (recent.sent, recent.lost) == (10, 10)


def log_likelihood(sent, lost):
    return sum(n * math.log(n / sent) for n in (lost, sent - lost) if n)


def plainly(intervals, most):
    """The same with every sum taken anew."""
    kept = []
    for interval in intervals:
        kept = [*kept[-(most - 1) :], interval]

        def total(some):
            return sum(sent for sent, _ in some), sum(lost for _, lost in some)

        gains = [
            log_likelihood(*total(kept[:place])) + log_likelihood(*total(kept[place:]))
            for place in range(len(kept))
        ]
        place = max(range(len(kept)), key=gains.__getitem__)
        if gains[place] - gains[0] >= CHANGE:
            (old_sent, old_lost), (sent, lost) = total(kept[:place]), total(kept)
            kept = kept[place:]
            if old_lost / old_sent > lost / sent and kept[0][1]:
                kept = kept[1:]
    return total(kept)


@pytest.mark.parametrize("most", [4, 12])
def test_counts_are_those_of_a_plain_test_at_each_place(most):
    for seed in range(15):
        rng = random.Random(seed)
        intervals = []
        for _ in range(4):
            loss, sent = rng.choice([0, 0, 0.05, 0.3, 1]), rng.choice([1, 10, 20])
            intervals += [(sent, sum(rng.random() < loss for _ in range(sent))) for _ in range(6)]
            assert fed(intervals, most) == plainly(intervals, most), seed


def test_a_change_is_one_from_eight_nats():
    # Nothing lost, then everything: the share that explains both best is a half, which costs 2 n ln 2.
    assert [fed([(n, 0), (n, n)]) for n in (5, 6)] == [(10, 5), (6, 6)]
    assert 2 * 5 * math.log(2) < CHANGE < 2 * 6 * math.log(2)
