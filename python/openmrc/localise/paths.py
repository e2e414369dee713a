"""Verdicts from what queue pairs believe of their paths: EV events instead of counted probes."""

from collections.abc import Iterable

from openmrc.fabric import Path
from openmrc.localise.components import Component, Kind, components_of_path, crossing
from openmrc.localise.likelihood import Model, Observation, Verdict, localise

PACKETS = 8
"""Packets that a path counts as, all lost or all arrived: few, because a queue pair condemns a path for one
loss that congestion cannot explain, and a host without a processor condemns healthy ones."""

WHOLE_PATHS = Model(least_loss=0.999)
"""What has failed kills the paths through it. Without this bound a host with two dead paths among many would
explain two broken cables."""


def localise_paths(
    dead: Iterable[Path],
    alive: Iterable[Path],
    *,
    cables_down: Iterable[tuple[str, str]] = (),
    model: Model = WHOLE_PATHS,
) -> list[Verdict]:
    """The failed components that explain which paths are dead, the one with most evidence first.

    Unlike :func:`openmrc.localise.smallest_cover` it tolerates a path that is believed dead or alive wrongly,
    suspects hosts and switches too, and says when several suspects explain as much.

    Args:
        dead: Condemned paths of any hosts.
        alive: Paths that were used after the last of them was condemned.
        cables_down: Link and the switch at its upper end, for each port of a host that has no carrier.
        model: What is known before.
    """
    seen = [Observation(components_of_path(path), PACKETS, PACKETS) for path in dead]
    seen += [Observation(components_of_path(path), PACKETS, 0) for path in alive]
    for link, switch in cables_down:
        components = {*crossing(link, upward=True), *crossing(link, upward=False)}
        components.add(Component(Kind.SWITCH, switch))
        seen.append(Observation(frozenset(components), PACKETS, PACKETS))
    return localise(seen, model)
