"""Which failed components explain the losses best: a graphical model, searched greedily.

A path loses a packet with probability 1 - (1 - background) x product of (1 - loss) over the failed components
on it. The search adds the component that raises the posterior most, fits the rates of all chosen ones again,
and drops those that the others have made superfluous (as Flock does, arXiv 2305.03348, with rates that are
fitted instead of given).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from openmrc.errors import ArgumentError
from openmrc.localise.components import Component, Kind

PRIORS = MappingProxyType(
    {
        Kind.HOST: 1e-3,
        Kind.LINK: 1e-4,
        Kind.UPWARD: 1e-5,
        Kind.DOWNWARD: 1e-5,
        Kind.SWITCH: 1e-5,
        Kind.GROUP: 1e-5,
    }
)
"""How probable it is that a component is failed at a time. Only their ratios matter much: hosts stall more
often than links fail, links more often than switches."""

_REFITS = 3
_NO_SHARE = 60.0
"""Nats below the most probable suspect from which a share is less than a double can add to 1."""
_STEPS = 60
"""Of the search for a rate: a golden section in the logarithm reaches 1e-9 of the interval."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What happened to the packets that needed the same components.

    Raises:
        ArgumentError: if more packets were lost than sent, or a number is negative.
    """

    components: frozenset[Component]
    sent: int
    lost: int

    def __post_init__(self) -> None:
        if not 0 <= self.lost <= self.sent:
            raise ArgumentError(f"lost: {self.lost} of {self.sent} packets; it must be 0 to sent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is known before the observations."""

    background: float = 1e-6
    """Share of packets that a healthy path loses."""
    priors: Mapping[Kind, float] = field(default_factory=lambda: PRIORS)
    least_evidence: float = 32.0
    """Nats below which nothing is blamed; :func:`openmrc.localise.alarm_threshold` gives it for a rate of
    false alarms. 32 is one a day with a million links and a thousand probes a second on each."""
    certain: float = 0.9
    """Posterior share from which a verdict names its component; below it the verdict is "unknown"."""
    least_loss: float = 0.0
    """Share of packets that whatever has failed loses at least."""
    most_faults: int = 32
    """Faults at a time; the search ends there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One fault."""

    component: Component | None
    """What has failed; ``None``: unknown, several suspects explain the losses about as well."""
    confidence: float
    """Posterior probability of the first suspect among all that could take its place, 0 to 1."""
    loss: float
    """Share of packets that the first suspect loses."""
    evidence: float
    """Log-likelihood that the verdict adds to the explanation, nats."""
    suspects: tuple[tuple[Component, float], ...]
    """Components with their probabilities, the most probable first."""
    paths: int
    """Observations with losses that cross the first suspect."""

    def __str__(self) -> str:
        names = " or ".join(str(suspect) for suspect, _ in self.suspects)
        named = str(self.component) if self.component else f"unknown, perhaps {names}"
        return f"{named}: {self.loss:.2%} lost, confidence {self.confidence:.2f}, {self.evidence:.0f} nats"


def localise(observations: Iterable[Observation], model: Model | None = None) -> list[Verdict]:
    """The faults that explain the observations, the one with most evidence first; none if nothing is wrong.

    Args:
        observations: From any hosts and of any paths or loops, over the same time. Paths without losses
        count:
            they acquit their components.
        model: What is known before; default :class:`Model`.
    """
    return _Search(observations, model or Model()).verdicts()


def evidence_against(sent: int, lost: int, model: Model | None = None) -> float:
    """What counts say against a path, nats: how much better their share explains them than a healthy one."""
    if not lost:
        return 0.0
    arrives = 1 - (model or Model()).background
    if 1 - lost / sent >= arrives:
        return 0.0
    return _log_likelihood(sent, lost, 1 - lost / sent) - _log_likelihood(sent, lost, arrives)


class _Search:
    def __init__(self, observations: Iterable[Observation], model: Model) -> None:
        self._model = model
        together: defaultdict[frozenset[Component], list[int]] = defaultdict(lambda: [0, 0])
        for each in observations:
            counts = together[each.components]
            counts[0] += each.sent
            counts[1] += each.lost
        self._sets = list(together)
        self._counts = [(sent, lost) for sent, lost in together.values()]
        self._lossy = [i for i, (_, lost) in enumerate(self._counts) if lost]
        suspects = {c for i in self._lossy for c in self._sets[i]}
        self._through: defaultdict[Component, list[int]] = defaultdict(list)
        for i, components in enumerate(self._sets):
            for component in components & suspects:
                self._through[component].append(i)
        self._lossy_through: defaultdict[Component, list[int]] = defaultdict(list)
        for i in self._lossy:
            for component in self._sets[i]:
                self._lossy_through[component].append(i)
        self._needing: dict[Component, frozenset[int]] = {}
        self._rates: dict[Component, float] = {}

    def verdicts(self) -> list[Verdict]:
        self._search()
        if self._model.least_loss:
            self._divide()
        found = [self._verdict(component) for component in self._rates]
        return sorted(found, key=lambda verdict: -verdict.evidence)

    def _search(self, banned: Collection[Component] = ()) -> None:
        """Chooses components, without those that are banned."""
        self._rates = {}
        while len(self._rates) < self._model.most_faults:
            best = self._best_addition(banned)
            if best is None:
                break
            self._rates[best] = self._fit(best)[0]
            self._refit()
            # An addition that made itself superfluous would come again for ever.
            if self._drop_superfluous() == best:
                break

    def _divide(self) -> None:
        """Replaces a component by several others where these explain more.

        A component that explains the losses of two faults is chosen before either, and then hides them. Those
        that explain the same losses would take its place, so they are left out with it.
        """
        banned: set[Component] = set()
        chosen = self._rates
        for component in [c for c in chosen if len(self._through[c]) > len(self._losses(c))]:
            before, losses = self._posterior(), self._losses(component)
            same = {c for c in self._through if self._losses(c) == losses}
            self._search(banned | same)
            if self._posterior() > before:
                banned |= same
                chosen = self._rates
            self._rates = chosen

    def _losses(self, component: Component) -> set[int]:
        """The observations with losses that cross a component."""
        return set(self._lossy_through[component])

    def _needs(self, component: Component) -> frozenset[int]:
        """The observations that need a component that was chosen."""
        found = self._needing.get(component)
        if found is None:
            found = self._needing[component] = frozenset(self._through[component])
        return found

    def _posterior(self) -> float:
        """Logarithm of the posterior of what is chosen, up to a constant."""
        total = sum(math.log(self._model.priors[component.kind]) for component in self._rates)
        for components, (sent, lost) in zip(self._sets, self._counts, strict=True):
            arrives = 1 - self._model.background
            for component, rate in self._rates.items():
                if component in components:
                    arrives *= 1 - rate
            total += _log_likelihood(sent, lost, arrives)
        return total

    def _best_addition(self, banned: Collection[Component]) -> Component | None:
        """The component that raises the posterior most; ``None`` if none has the evidence."""
        # An addition explains at most what is unexplained of its paths with losses. So the search begins with
        # those of which most is, and passes over what cannot be better; of equals the first one is taken.
        unexplained = self._unexplained()
        bounds = [
            (sum(unexplained[i] for i in self._lossy_through[component]), place, component)
            for place, component in enumerate(self._through)
            if component not in self._rates and component not in banned
        ]
        best, most = None, (0.0, 0)
        for bound, place, component in sorted(bounds, key=lambda each: -each[0]):
            # Sums of many logarithms differ in their last digits.
            reach = bound * (1 + 1e-9) + 1e-6
            prior = math.log(self._model.priors[component.kind])
            if reach < self._model.least_evidence:
                break
            if reach + prior < most[0]:
                continue
            gain = self._fit(component)[1]
            if gain < self._model.least_evidence:
                continue
            if (gain + prior, -place) > most:
                best, most = component, (gain + prior, -place)
        return best

    def _unexplained(self, without: Collection[Component] = ()) -> dict[int, float]:
        """How improbable each observation with losses is with what is chosen, nats."""
        arrives = dict.fromkeys(self._lossy, 1 - self._model.background)
        for component, rate in self._rates.items():
            for i in self._lossy_through[component] if component not in without else ():
                arrives[i] *= 1 - rate
        return {i: -_log_likelihood(*self._counts[i], share) for i, share in arrives.items()}

    def _refit(self) -> None:
        """Fits the rates again, one after the other with the others as they are."""
        for _ in range(_REFITS if len(self._rates) > 1 else 0):
            for component in self._rates:
                self._rates[component] = self._fit(component)[0]

    def _drop_superfluous(self) -> Component | None:
        """Drops the component with the least evidence if that is too little; returns it."""
        weakest = min(self._rates, key=lambda component: self._fit(component)[1])
        if self._fit(weakest)[1] >= self._model.least_evidence:
            return None
        del self._rates[weakest]
        self._refit()
        return weakest

    def _fit(self, component: Component, without: Collection[Component] = ()) -> tuple[float, float]:
        """The rate of loss of a component that explains its paths best, and how much it explains, nats.

        The rates of the other chosen components are kept, except those of ``without``, which are taken as
        healthy.
        """
        groups = self._groups(component, without)

        def log_likelihood(rate: float) -> float:
            return sum(_log_likelihood(sent, lost, s * (1 - rate)) for s, (sent, lost) in groups.items())

        least, most = max(self._model.background, self._model.least_loss), 1 - self._model.background
        if len(groups) == 1:
            [(share, (sent, lost))] = groups.items()
            rate = min(max(1 - (1 - lost / sent) / share, least), most)
        else:
            rate = _maximum(log_likelihood, least, most)
        return rate, log_likelihood(rate) - log_likelihood(0.0)

    def _groups(self, component: Component, without: Collection[Component]) -> Mapping[float, Sequence[int]]:
        """Packets sent and lost over a component, by the share that the other faults let arrive."""
        through, healthy = self._through[component], 1 - self._model.background
        others = [
            (self._needs(other), 1 - rate)
            for other, rate in self._rates.items()
            if other != component and other not in without and not self._needs(other).isdisjoint(through)
        ]
        groups: defaultdict[float, list[int]] = defaultdict(lambda: [0, 0])
        for i in through:
            arrives = healthy
            for needing, share in others:
                if i in needing:
                    arrives *= share
            counts = groups[arrives]
            counts[0] += self._counts[i][0]
            counts[1] += self._counts[i][1]
        return groups

    def _verdict(self, component: Component) -> Verdict:
        """Compares a chosen component with all that could take its place."""
        rate, evidence = self._fit(component)
        lossy = self._losses(component)
        rivals = {c for i in lossy for c in self._sets[i]} - (self._rates.keys() - {component})
        unexplained = self._unexplained([component])
        posterior: dict[Component, float] = {}
        most = -math.inf
        # The component itself is first: what can explain much less has no share of the posterior.
        for rival in (component, *rivals - {component}):
            prior = math.log(self._model.priors[rival.kind])
            if sum(unexplained[i] for i in self._lossy_through[rival]) + prior < most - _NO_SHARE:
                continue
            posterior[rival] = self._fit(rival, without=[component])[1] + prior
            most = max(most, posterior[rival])
        weights = {rival: math.exp(value - most) for rival, value in posterior.items()}
        total = sum(weights.values())
        parts: defaultdict[tuple[str, str], float] = defaultdict(float)
        for rival, weight in weights.items():
            parts[rival.part] += weight / total
        # Of a link and its directions the heaviest stands for the part.
        stands: dict[tuple[str, str], Component] = {}
        for rival, weight in weights.items():
            before = stands.get(rival.part)
            if before is None or weight > weights[before]:
                stands[rival.part] = rival
        suspects = sorted(
            ((stands[part], share) for part, share in parts.items()), key=lambda pair: (-pair[1], pair[0])
        )
        first, confidence = suspects[0]
        return Verdict(
            component=first if confidence >= self._model.certain else None,
            confidence=confidence,
            loss=rate,
            evidence=evidence,
            suspects=tuple((c, share) for c, share in suspects if share >= 0.01),
            paths=len(lossy),
        )


def _log_likelihood(sent: int, lost: int, arrives: float) -> float:
    """Of these losses where each packet arrives with this probability; without the binomial's constant."""
    arrived = sent - lost
    # A path that loses everything: a packet that arrived all the same refutes it, at a price that is finite.
    arrives = min(max(arrives, 1e-12), 1 - 1e-12)
    return arrived * math.log(arrives) + (lost * math.log1p(-arrives) if lost else 0.0)


def _maximum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of a rate with one maximum has it, by golden section in the rate's log-odds."""
    ratio = (math.sqrt(5) - 1) / 2

    def rate(odds: float) -> float:
        return 1 / (1 + math.exp(-odds))

    a, b = (math.log(x / (1 - x)) for x in (low, high))
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    fc, fd = function(rate(c)), function(rate(d))
    for _ in range(_STEPS):
        if fc > fd:
            b, d, fd = d, c, fc
            c = b - ratio * (b - a)
            fc = function(rate(c))
        else:
            a, c, fc = c, d, fd
            d = a + ratio * (b - a)
            fd = function(rate(d))
    return rate((a + b) / 2)
