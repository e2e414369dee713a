"""The search against one that is slow and plain, and its numbers where they can be had by hand."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from openmrc.localise import Component, Kind, Model, Observation, Verdict, likelihood, localise
from openmrc.localise.likelihood import PRIORS, _maximum, evidence_against


class Plain:
    """The search as its module describes it, without short cuts: every sum is over all observations."""

    def __init__(self, observations, model):
        self.model = model
        self.sets = list(dict.fromkeys(each.components for each in observations))
        self.sent, self.lost = (
            np.array(
                [
                    sum(getattr(each, what) for each in observations if each.components == one)
                    for one in self.sets
                ]
            )
            for what in ("sent", "lost")
        )
        self.all = sorted({c for one, lost in zip(self.sets, self.lost, strict=True) if lost for c in one})
        self.on = {c: np.array([c in one for one in self.sets]) for c in self.all}

    def fits(self, arrives):
        """Log-likelihood of what was seen, by the shares that arrive on each path."""
        arrives = np.clip(arrives, 1e-12, 1 - 1e-12)
        return np.log(arrives) @ (self.sent - self.lost) + np.log1p(-arrives) @ self.lost

    def arrives(self, rates):
        shares = np.full(len(self.sets), 1 - self.model.background)
        for component, rate in rates.items():
            shares = np.where(self.on[component], shares * (1 - rate), shares)
        return shares

    def fit(self, component, rates):
        """The best rate beside those of the others, and the evidence for it."""
        others = self.arrives({c: rate for c, rate in rates.items() if c != component})
        low = max(self.model.background, self.model.least_loss)
        a, b = (math.log(x / (1 - x)) for x in (low, 1 - self.model.background))
        # Ever finer grids of log-odds around the best place so far.
        for _ in range(9):
            odds = np.linspace(a, b, 41)
            rates_tried = 1 / (1 + np.exp(-odds))
            found = self.fits(np.where(self.on[component], np.outer(1 - rates_tried, others), others))
            best = int(np.argmax(found))
            a, b = odds[max(best - 1, 0)], odds[min(best + 1, 40)]
        return rates_tried[best], found[best] - self.fits(others)

    def prior(self, component):
        return math.log(self.model.priors[component.kind])

    def refit(self, rates):
        for _ in range(3 if len(rates) > 1 else 0):
            for component in rates:
                rates[component] = self.fit(component, rates)[0]

    def search(self, banned=frozenset()):
        rates = {}
        while len(rates) < self.model.most_faults:
            gains = {c: self.fit(c, rates)[1] for c in self.all if c not in rates and c not in banned}
            gains = {c: gain for c, gain in gains.items() if gain >= self.model.least_evidence}
            gains = {c: gain + self.prior(c) for c, gain in gains.items() if gain + self.prior(c) > 0}
            if not gains:
                break
            best = max(gains, key=gains.__getitem__)
            rates[best] = self.fit(best, rates)[0]
            self.refit(rates)
            evidence = {c: self.fit(c, rates)[1] for c in rates}
            weakest = min(evidence, key=evidence.__getitem__)
            if evidence[weakest] < self.model.least_evidence:
                del rates[weakest]
                self.refit(rates)
                if weakest == best:
                    break
        return rates

    def posterior(self, rates):
        return sum(map(self.prior, rates)) + self.fits(self.arrives(rates))

    def losses(self, component):
        return [bool(lost) and component in one for one, lost in zip(self.sets, self.lost, strict=True)]

    def verdicts(self):
        chosen, banned = self.search(), set()
        if self.model.least_loss:
            for component in list(chosen):
                if self.on[component].sum() == sum(self.losses(component)):
                    continue
                same = {c for c in self.all if self.losses(c) == self.losses(component)}
                other = self.search(banned | same)
                if self.posterior(other) > self.posterior(chosen):
                    chosen = other
                    banned |= same
        return [self.verdict(component, chosen) for component in chosen]

    def verdict(self, component, chosen):
        others = {c: rate for c, rate in chosen.items() if c != component}
        rate, evidence = self.fit(component, chosen)
        on_its_paths = [one for one, lost in zip(self.sets, self.losses(component), strict=True) if lost]
        rivals = {c for one in on_its_paths for c in one} - set(others)
        weights = {c: self.fit(c, others)[1] + self.prior(c) for c in rivals}
        most = max(weights.values())
        weights = {c: math.exp(weight - most) for c, weight in weights.items()}
        shares = {}
        for part in {c.part for c in rivals}:
            of = [c for c in rivals if c.part == part]
            shares[max(of, key=weights.__getitem__)] = sum(weights[c] for c in of) / sum(weights.values())
        first = max(shares, key=shares.__getitem__)
        named = first if shares[first] >= self.model.certain else None
        return named, rate, evidence, shares, len(on_its_paths)


def drawn(rng):
    """Few components on few paths, of which some lose: a search has to weigh and to take back."""
    names = [Component(rng.choice(list(Kind)), name) for name in "vwxyz"]
    names += [Component(kind, "l") for kind in (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD)]
    faults = {c: rng.choice([0.02, 0.1, 0.4, 1.0]) for c in rng.sample(names, rng.randint(1, 3))}
    seen = []
    for _ in range(rng.randint(2, 9)):
        path = frozenset(rng.sample(names, rng.randint(1, 4)))
        arrives = math.prod(1 - loss for c, loss in faults.items() if c in path)
        sent = rng.choice([0, 8, 40, 200])
        seen.append(Observation(path, sent, sum(rng.random() >= arrives for _ in range(sent))))
    return seen


@pytest.mark.parametrize("least_loss", [0.0, 0.3])
def test_verdicts_are_those_of_a_plain_search(least_loss):
    model = Model(background=1e-3, least_evidence=6, least_loss=least_loss, certain=0.8, most_faults=3)
    several = 0
    # Two of the worlds divide a component with another one that explains the same losses.
    for seed in (*range(25), 226, 323):
        seen = drawn(random.Random(seed))
        expected = Plain(seen, model).verdicts()
        found = localise(seen, model)
        several += len(found) > 1
        assert [v.evidence for v in found] == sorted((v.evidence for v in found), reverse=True)
        for verdict, (named, rate, evidence, shares, paths) in zip(
            found, sorted(expected, key=lambda each: -each[2]), strict=True
        ):
            assert verdict.component == named, seed
            assert verdict.loss == pytest.approx(rate, rel=1e-4), seed
            assert verdict.evidence == pytest.approx(evidence, rel=1e-6), seed
            assert verdict.paths == paths
            assert verdict.confidence == pytest.approx(max(shares.values()), rel=1e-5)
            likely = {c: share for c, share in shares.items() if share >= 0.01}
            assert dict(verdict.suspects) == pytest.approx(likely, rel=1e-4), seed
    assert several > 2


def test_suspects_that_explain_as_much_have_the_shares_of_their_priors():
    """Of the kinds hosts fail most often, links next, and the others as often as each other."""
    assert {Kind.HOST: 1e-3, Kind.LINK: 1e-4} | dict.fromkeys(list(Kind)[2:], 1e-5) == PRIORS
    for kind in Kind:
        for other in Kind:
            one, two = Component(kind, "one"), Component(other, "two")
            [verdict] = localise([Observation(frozenset({one, two}), 1000, 500)])
            share = PRIORS[kind] / (PRIORS[kind] + PRIORS[other])
            likely = {c: s for c, s in ((one, share), (two, 1 - share)) if s > 0.01}
            assert dict(verdict.suspects) == pytest.approx(likely)
            assert verdict.component == (one if share > 0.9 else two if share < 0.1 else None)


def test_a_verdict_from_one_path_is_closed_form():
    link = Component(Kind.LINK, "link")
    [verdict] = localise([Observation(frozenset({link}), 1000, 250)], Model(background=0.1))
    assert verdict == Verdict(
        component=link,
        confidence=1.0,
        loss=pytest.approx(1 - 0.75 / 0.9),
        evidence=pytest.approx(250 * math.log(0.25 / 0.1) + 750 * math.log(0.75 / 0.9)),
        suspects=((link, 1.0),),
        paths=1,
    )
    assert str(verdict) == "link link: 16.67% lost, confidence 1.00, 92 nats"


def test_a_verdict_without_a_name_shows_all_its_suspects():
    one, two = Component(Kind.HOST, "h1"), Component(Kind.HOST, "h2")
    [verdict] = localise([Observation(frozenset({one, two}), 100, 50)])
    assert str(verdict) == ("unknown, perhaps host h1 or host h2: 50.00% lost, confidence 0.50, 621 nats")


def test_evidence_against_a_path_is_what_its_own_share_explains_better():
    model = Model(background=0.1)
    expected = 50 * math.log(0.5 / 0.1) + 50 * math.log(0.5 / 0.9)
    assert evidence_against(100, 50, model) == pytest.approx(expected)
    assert evidence_against(100, 10, model) == evidence_against(100, 5, model) == 0
    assert evidence_against(100, 0, model) == 0
    # Where a healthy path loses nothing a loss is as improbable as a millionth of a millionth.
    expected = 5 * math.log(0.5 / 1e-12) + 5 * math.log(0.5)
    assert evidence_against(10, 5, Model(background=0)) == pytest.approx(expected)
    assert evidence_against(1, 1) == pytest.approx(-math.log(1e-6))


def test_a_packet_that_arrives_over_a_dead_path_costs_no_more_than_a_million_millionth():
    assert evidence_against(2, 2, Model(background=0.5)) == pytest.approx(2 * math.log(2))
    dead = Model(least_loss=1 - 1e-6, least_evidence=1)
    a, b = Component(Kind.LINK, "a"), Component(Kind.LINK, "b")
    [verdict] = localise([Observation(frozenset({a}), 10, 10), Observation(frozenset({a, b}), 10, 10)], dead)
    assert verdict.component == a


def test_the_defaults_are_those_of_the_page_on_operation():
    model = Model()
    assert (model.background, model.least_evidence, model.certain) == (1e-6, 32, 0.9)
    assert (model.least_loss, model.most_faults) == (0, 32)


@pytest.mark.parametrize("at", [1e-6, 1e-4, 0.3, 0.9, 0.99999])
def test_the_maximum_of_a_function_of_a_rate_is_found_wherever_it_is(at):
    tried = []

    def function(rate):
        tried.append(rate)
        return -abs(math.log(rate / (1 - rate)) - math.log(at / (1 - at)))

    assert _maximum(function, 1e-6, 1 - 1e-6) == pytest.approx(at, rel=1e-9)
    # One value for each step of a golden section, and two to begin with.
    assert len(tried) == 62
    assert all(1e-6 < rate < 1 - 1e-6 for rate in tried)


LINK, OTHER, X, Y = (Component(Kind.LINK, name) for name in ("link", "other", "x", "y"))


def every(*components, sent, lost):
    return Observation(frozenset(components), sent, lost)


def fitted(monkeypatch, seen, model):
    """The only verdict, and how often the rate of each component was fitted on the way to it."""
    fits, fit = Counter(), likelihood._Search._fit

    def counted(search, component, without=()):
        fits[component] += 1
        return fit(search, component, without)

    monkeypatch.setattr(likelihood._Search, "_fit", counted)
    [verdict] = localise(seen, model)
    return verdict, fits


def test_a_suspect_that_explains_too_little_is_never_fitted(monkeypatch):
    # Each loss is 12.1 nats. "x" explains 60.5 nats less than the link, and a share of exp(-60) is none.
    model = Model(background=math.exp(-12.1))
    seen = [every(LINK, X, sent=10, lost=10), every(LINK, Y, sent=5, lost=5)]
    verdict, fits = fitted(monkeypatch, seen, model)
    assert verdict.component == LINK
    # To compare it, for its rate, twice to see whether it is superfluous, and twice for the verdict.
    assert fits == {LINK: 6}


def test_a_suspect_that_cannot_be_better_is_fitted_only_for_its_share(monkeypatch):
    # "x" explains a nat less than the link, and is as probable.
    seen = [every(LINK, X, sent=10, lost=10), every(LINK, sent=7, lost=1)]
    model = Model(background=math.exp(-12))
    explains = evidence_against(10, 10, model)
    verdict, fits = fitted(monkeypatch, seen, model)
    assert verdict.suspects[0][0] == LINK
    assert 0 < verdict.evidence - explains < 1
    assert fits == {LINK: 6, X: 1}


def test_the_more_probable_of_suspects_with_the_same_evidence_is_taken_first():
    host, switch = Component(Kind.HOST, "h"), Component(Kind.SWITCH, "s")
    seen = [every(each, sent=8, lost=8) for each in (LINK, switch, host)]
    [verdict] = localise(seen, Model(most_faults=1))
    assert verdict.component == host
    # Of equals the first one.
    seen = [every(each, sent=8, lost=8) for each in (LINK, OTHER)]
    assert [v.component for v in localise(seen, Model(most_faults=1))] == [LINK]


def test_what_has_just_the_least_evidence_is_blamed():
    seen = [every(LINK, sent=1000, lost=1000)]
    [verdict] = localise(seen)
    assert localise(seen, Model(least_evidence=verdict.evidence)) == [verdict]
    assert localise(seen, Model(least_evidence=verdict.evidence + 1e-6)) == []
    assert localise([every(LINK, sent=10, lost=3)], Model(least_evidence=35.3)) != []


def test_suspects_behind_many_that_explain_too_little_keep_their_share():
    crossing = [
        every(LINK, OTHER, Component(Kind.LINK, str(number)), sent=100, lost=50) for number in range(10)
    ]
    [verdict] = localise(crossing)
    assert dict(verdict.suspects) == pytest.approx({LINK: 0.5, OTHER: 0.5})


def test_no_more_faults_are_named_than_the_model_has():
    links = [Component(Kind.LINK, str(number)) for number in range(40)]
    seen = [Observation(frozenset({link}), 1000, 500 + number) for number, link in enumerate(links)]
    for most in (1, 5):
        found = localise(seen, Model(most_faults=most))
        assert [v.component for v in found] == links[: -most - 1 : -1]
    assert len(localise(seen)) == 32


def test_a_share_at_the_bound_is_enough():
    seen = [every(LINK, OTHER, sent=10, lost=10)]
    [verdict] = localise(seen, Model(certain=0.5))
    assert verdict.confidence == 0.5
    assert verdict.component == LINK


def test_an_addition_that_makes_itself_superfluous_ends_the_search(monkeypatch):
    def fit(search, component, without=()):
        return 0.5, 0.0 if component in search._rates else 100.0

    monkeypatch.setattr(likelihood._Search, "_fit", fit)
    assert localise([every(LINK, sent=10, lost=10)]) == []


def test_a_suspect_is_blamed_where_its_evidence_outweighs_its_prior():
    # One loss says as much as a healthy path loses seldom; a link fails once in exp(9.21).
    seen = [every(LINK, sent=1, lost=1)]
    assert [len(localise(seen, Model(background=math.exp(-n), least_evidence=1))) for n in (9.1, 9.3)] == [
        0,
        1,
    ]


@pytest.mark.parametrize("packets", [1, 1000])
def test_the_bound_on_what_a_suspect_explains_is_exact_but_for_rounding(packets):
    seen = [every(LINK, sent=packets, lost=packets)]
    [verdict] = localise(seen, Model(background=1e-9, least_evidence=1))
    assert localise(seen, Model(background=1e-9, least_evidence=verdict.evidence)) == [verdict]
