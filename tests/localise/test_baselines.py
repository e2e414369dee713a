"""The published localisers on paths whose verdicts can be had by hand."""

import math

import pytest

from openmrc.localise import Component, Kind, Observation
from openmrc.localise.baselines import netbouncer, votes

A, B, C, D = (Component(Kind.LINK, name) for name in "abcd")


def path(*components, sent=100, lost=1):
    return Observation(frozenset(components), sent, lost)


def test_a_path_shares_its_vote_among_its_components_and_the_blamed_take_their_paths_away():
    # Votes: a 1/2 + 1/2, b 1/2, c 1/2, d 1/3 of another path with b and c.
    assert votes([path(A, B), path(A, C), path(B, C, D)]) == [A, D]
    # Two short paths weigh more than three long ones.
    assert votes([path(A), path(A), *[path(B, C, D)] * 3]) == [A, D]


def test_votes_end_below_the_least_share_of_all_votes():
    seen = [*[path(A)] * 3, path(B)]
    assert votes(seen, least_share=0.25) == [A, B]
    assert votes(seen, least_share=0.26) == [A]
    # By default a hundredth of all votes.
    assert votes([*[path(A)] * 99, path(B)]) == [A, B]
    assert votes([*[path(A)] * 198, path(B), path(B)]) == [A, B]
    assert votes([*[path(A)] * 100, path(B)]) == [A]


def test_a_path_is_bad_above_a_share_of_losses():
    assert votes([path(A, sent=10, lost=2)], loss=0.2) == []
    assert votes([path(A, sent=10, lost=3)], loss=0.2) == [A]
    # By default a ten thousandth.
    assert votes([path(A, sent=20_000, lost=2)]) == []
    assert votes([path(A, sent=20_000, lost=3)]) == [A]


def test_each_step_of_netbouncer_is_the_minimum_along_one_component():
    seen = [path(A, B, lost=70), path(A, lost=40), path(B, lost=50), path(A, sent=0, lost=0)]
    penalty = 0.3

    def minimum(passes, component):
        # Of (share - x rest)^2 + penalty x (1 - x), summed over the paths of a component.
        squares = products = 0.0
        for each in seen:
            if component in each.components and each.sent:
                rest = math.prod(passes[c] for c in each.components if c != component)
                squares += rest**2
                products += rest * (1 - each.lost / each.sent)
        return (products - penalty / 2) / (squares - penalty)

    # The first path may have either component first.
    orders = {order: {A: (0.3 + 0.6) / 2, B: (0.3 + 0.5) / 2} for order in ((A, B), (B, A))}
    for rounds in (1, 2, 3):
        for order, passes in orders.items():
            for component in order:
                passes[component] = minimum(passes, component)
        found = netbouncer(seen, rounds=rounds, penalty=penalty)
        assert found in [pytest.approx(passes) for passes in orders.values()]


def test_netbouncer_goes_on_after_a_round_that_moves_by_the_tolerance_itself():
    seen = [path(A, B, lost=70), path(A, lost=40), path(B, lost=50)]
    first = netbouncer(seen, rounds=1)
    start = {A: ((1 - 70 / 100) + (1 - 40 / 100)) / 2, B: ((1 - 70 / 100) + (1 - 50 / 100)) / 2}
    moved = max(abs(first[each] - start[each]) for each in (A, B))
    assert netbouncer(seen, tolerance=moved) == netbouncer(seen, rounds=2) != first


def test_no_share_of_netbouncer_is_above_one():
    assert netbouncer([path(A, lost=0)], penalty=0.5, blamed_below=9) == {A: 1}
    assert netbouncer([path(A, lost=0)], penalty=2, blamed_below=9) == {A: 1}
    # With a penalty of what was seen of a component every share would do, and it is at an end.
    assert netbouncer([path(A, lost=60)], penalty=1) == {A: 0}


def test_netbouncer_makes_fifty_rounds_where_two_components_are_hard_to_tell_apart():
    seen = [*[path(A, B, lost=60)] * 100, path(A, lost=50), path(B, lost=10)]
    found = netbouncer(seen)
    assert found == netbouncer(seen, rounds=50)
    assert found != netbouncer(seen, rounds=51)


def test_netbouncer_ends_where_nothing_moves_by_the_tolerance():
    seen = [path(A, B, sent=10, lost=5), path(A, sent=10, lost=1), path(B, sent=20, lost=8)]
    exact = netbouncer(seen, rounds=1000, tolerance=0)
    assert netbouncer(seen) == pytest.approx(exact, abs=1e-5)
    assert netbouncer(seen) != exact
    assert netbouncer(seen, tolerance=10) == netbouncer(seen, rounds=1)


def test_netbouncer_blames_what_lets_less_pass_than_a_share():
    # Without a penalty a component lets pass what its only path does.
    seen = [path(A, sent=1000, lost=1), path(B, sent=1000, lost=2)]
    assert netbouncer(seen, penalty=0) == {B: pytest.approx(0.998)}
    assert netbouncer(seen, penalty=0, blamed_below=1) == {A: pytest.approx(0.999), B: pytest.approx(0.998)}
    assert netbouncer([path(A, sent=2, lost=1)], penalty=0, blamed_below=0.5) == {}
    # By default a penalty of a twentieth.
    assert netbouncer([path(A, sent=2, lost=1)]) == {A: pytest.approx((0.5 - 0.025) / 0.95)}
    assert netbouncer([path(A, sent=50, lost=1)]) == {}
