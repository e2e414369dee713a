"""Published localisers, to compare with: votes as in 007, and NetBouncer's regression.

007: Arzani et al., NSDI 2018. NetBouncer: Tan et al., NSDI 2019.
"""

from collections import defaultdict
from collections.abc import Iterable

from openmrc.localise.components import Component
from openmrc.localise.likelihood import Observation


def votes(
    observations: Iterable[Observation], *, least_share: float = 0.01, loss: float = 1e-4
) -> list[Component]:
    """The components that 007 blames.

    A path that loses gives each of its h components 1/h of a vote. The one with most votes is blamed, its
    paths are taken away, and the rest is counted again while the first has at least ``least_share`` of all
    votes.

    Args:
        observations: Paths with their counts.
        least_share: Of all votes, 0 to 1.
        loss: Share lost from which a path counts as bad.
    """
    bad = [each.components for each in observations if each.lost > loss * each.sent]
    total, blamed = float(len(bad)), []
    while bad:
        tally: defaultdict[Component, float] = defaultdict(float)
        for components in bad:
            for component in components:
                tally[component] += 1 / len(components)
        first = max(tally, key=lambda component: (tally[component], component))
        if tally[first] < least_share * total:
            break
        blamed.append(first)
        bad = [components for components in bad if first not in components]
    return blamed


def netbouncer(
    observations: Iterable[Observation],
    *,
    penalty: float = 0.05,
    blamed_below: float = 0.999,
    rounds: int = 50,
    tolerance: float = 1e-6,
) -> dict[Component, float]:
    """The components that NetBouncer blames, with the share that each lets pass.

    Minimises the sum over paths of (share that arrived - product of x)^2 + penalty x sum of x (1 - x) by
    coordinate descent; each step has a closed form.

    Args:
        observations: Paths with their counts.
        penalty: Lambda of the paper: how strongly a component is drawn to either end. Small against
            the paths through a component, which are two for an uplink that two hosts probe.
        blamed_below: Share let pass below which a component is blamed.
        rounds: At most.
        tolerance: The descent ends when no x moves by more.
    """
    paths = [(each.components, 1 - each.lost / each.sent) for each in observations if each.sent]
    through: defaultdict[Component, list[int]] = defaultdict(list)
    for number, (components, _) in enumerate(paths):
        for component in components:
            through[component].append(number)
    passes = {
        component: sum(paths[i][1] for i in numbers) / len(numbers) for component, numbers in through.items()
    }
    for _ in range(rounds):
        moved = 0.0
        for component, numbers in through.items():
            squares = products = 0.0
            for i in numbers:
                rest = 1.0
                for other in paths[i][0]:
                    if other != component:
                        rest *= passes[other]
                squares += rest * rest
                products += rest * paths[i][1]
            curvature = squares - penalty
            if curvature > 0:
                new = min(max((products - penalty / 2) / curvature, 0.0), 1.0)
            else:
                new = 1.0 if products - penalty / 2 > curvature / 2 else 0.0
            moved = max(moved, abs(new - passes[component]))
            passes[component] = new
        if moved < tolerance:
            break
    return {component: share for component, share in passes.items() if share < blamed_below}
