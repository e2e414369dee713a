"""Faults drawn by seed for a simulated fabric, and what a controller makes of each by its agents' probes.

Each drill has a network of its own: it begins healthy, the fault comes, and the drill ends when the fault has
been named for a while or its time is over. So nothing is simulated in which nothing can happen.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric, Specification
from openmrc.localise import Component, Kind, Observation
from openmrc.localise.baselines import netbouncer, votes
from openmrc.operate.linkmap import Link, Topology
from openmrc.operate.model import NamedFault
from openmrc.operate.probed import EVALUATION_S, Cost, ProbedFabric, Stall
from openmrc.operate.probing import RATE
from openmrc.operate.score import Injected, Score, score

BEGINS_S = 1.0
"""The fault comes in the second after this."""
WATCHED_S = 2.0
"""From when a fault is named, for what is named wrongly meanwhile."""
PORTS_PER_OPTIC = 4
"""Links that share an optic."""
LEAST_S = 3.0
"""That a fault lasts at least."""


def fabric_of(hosts: int) -> Fabric:
    """A fabric of eight planes for this number of hosts, at least 16.

    Raises:
        ArgumentError: if there are too few or too many hosts for it.
    """
    if not 16 <= hosts <= 8192:
        raise ArgumentError(f"hosts: {hosts} is out of range: 16 to 8192")
    radix = next(radix for radix in (8, 16, 32, 64, 128) if radix * radix // 2 >= hosts)
    fields = {
        "name": "drill",
        "hosts": hosts,
        "nic": {"rate": "800G"},
        "planes": 8,
        "switch": {"radix": radix, "cages": radix // PORTS_PER_OPTIC},
        "tiers": 2,
        "parallel_links": 1,
    }
    return Fabric(Specification.model_validate(fields))


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that breaks in a drill."""

    injected: Injected
    """Its times are seconds of virtual time."""
    fault: Mapping[str, Any]
    """As a scenario has it."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A fault that has been drawn, or two at once."""

    kind: str
    parts: list[Part]
    limit_s: float
    """Seconds from its beginning until it counts as missed."""
    whole: bool = False
    """The drill takes all of this time: things happen one after the other."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a drill."""

    drawn: Drawn
    score: Score
    named: list[NamedFault]
    baselines: dict[str, tuple[int, int, int]]
    """By name: components blamed, of these rightly, and faults that are among them."""
    cost: Cost
    simulated_s: float


@dataclass(slots=True)
class _Dice:
    """A generator with what it can draw from."""

    topology: Topology
    generator: random.Random
    begins: float
    used: set[str] = field(default_factory=set)

    def _link(self, chosen: Callable[[Link], bool]) -> Link:
        links = [link for link in self.topology.links.values() if chosen(link) and link.name not in self.used]
        link = self.generator.choice(links)
        self.used.add(link.name)
        return link

    def fabric_link(self) -> Link:
        """A link between switches."""
        return self._link(lambda link: "/" in link.lower)

    def host_link(self) -> Link:
        """A host's cable."""
        return self._link(lambda link: "/" not in link.lower)

    def any_link(self) -> Link:
        """One of three is a host's cable."""
        return self.host_link() if self.generator.random() < 1 / 3 else self.fabric_link()

    def switch(self, tier: int) -> str:
        """A switch of a tier."""
        switches = [str(each) for each in self.topology.fabric.switches() if each.tier == tier]
        return self.generator.choice(switches)

    def part(
        self,
        title: str,
        component: Component,
        loss: float,
        *,
        after: float = 0.0,
        lasts: float | None = None,
        **fault: Any,
    ) -> Part:
        """Something that breaks ``after`` the beginning, and is repaired when it has lasted."""
        began = self.begins + after
        ended = None if lasts is None else began + lasts
        fields = {"at_us": began * 1e6, **fault}
        if ended is not None and fault["kind"] != "flap":
            fields["until_us"] = ended * 1e6
        return Part(Injected(component, loss, began, ended, title), fields)


def _down(dice: _Dice, *, lasts: float | None = None) -> Part:
    link = dice.fabric_link()
    component = Component(Kind.LINK, link.name)
    return dice.part("link down", component, 1.0, lasts=lasts, kind="down", targets=[link.name])


def _silent(dice: _Dice) -> Part:
    link = dice.any_link()
    upward = "/" in link.lower and dice.generator.random() < 0.5
    component = Component(Kind.UPWARD if upward else Kind.DOWNWARD, link.name)
    fault: dict[str, Any] = {
        "kind": "loss",
        "targets": [link.name],
        "probability": 1.0,
        "direction": str(component.kind),
    }
    return dice.part("one direction silent", component, 1.0, **fault)


def _lossy(loss: float) -> Callable[[_Dice], Part]:
    def draw(dice: _Dice) -> Part:
        link = dice.any_link()
        component = Component(Kind.LINK, link.name)
        title = f"link loses {loss:.1%}".replace(".0%", "%")
        return dice.part(title, component, loss, kind="loss", targets=[link.name], probability=loss)

    return draw


def _dead(tier: int) -> Callable[[_Dice], Part]:
    def draw(dice: _Dice) -> Part:
        name = dice.switch(tier)
        component = Component(Kind.SWITCH, name)
        title = f"T{tier} forwards nothing"
        return dice.part(title, component, 1.0, kind="loss", targets=[name], probability=1.0)

    return draw


def _optic(dice: _Dice) -> Part:
    optics = [name for name in dice.topology.optics if ":up" in name]
    name = dice.generator.choice(optics)
    component, loss = Component(Kind.GROUP, name), dice.generator.choice([1.0, 0.1])
    targets = dice.topology.parts(component)
    title = "optic of four links"
    return dice.part(title, component, loss, kind="loss", targets=targets, probability=loss)


def _port(dice: _Dice) -> Part:
    link = dice.host_link()
    component = Component(Kind.LINK, link.name)
    return dice.part("NIC port lost", component, 1.0, kind="nic-port", targets=[link.lower])


def _flapping(dice: _Dice, link: Link, after: float = 0.0) -> Part:
    down, up, times = dice.generator.uniform(0.1, 0.5), dice.generator.uniform(0.5, 1.0), 5
    return dice.part(
        "flapping link",
        Component(Kind.LINK, link.name),
        1.0,
        after=after,
        lasts=times * (down + up),
        kind="flap",
        targets=[link.name],
        down_us=down * 1e6,
        up_us=up * 1e6,
        times=times,
    )


def _two(dice: _Dice) -> list[Part]:
    return [
        draw(dice) for draw in dice.generator.sample([_down, _silent, _port, _lossy(0.1), _lossy(0.5)], 2)
    ]


def _repair(dice: _Dice) -> list[Part]:
    """A link is down, its neighbour flaps while it is repaired."""
    broken = _down(dice, lasts=9.0)
    name = broken.injected.component.name
    switch = name.partition(":")[0]
    beside = [each for each in dice.topology.groups[switch] if each != name]
    return [broken, _flapping(dice, dice.topology.links[dice.generator.choice(beside)], after=3.0)]


_KINDS: Mapping[str, tuple[Callable[[_Dice], Part | list[Part]], float]] = {
    "link down": (_down, 8.0),
    "one direction silent": (_silent, 8.0),
    "link loses 50%": (_lossy(0.5), 8.0),
    "link loses 10%": (_lossy(0.1), 10.0),
    "link loses 1%": (_lossy(0.01), 20.0),
    "link loses 0.1%": (_lossy(0.001), 60.0),
    "T1 forwards nothing": (_dead(1), 8.0),
    "T0 forwards nothing": (_dead(0), 8.0),
    "NIC port lost": (_port, 8.0),
    "two at once": (_two, 10.0),
    "flapping link": (lambda dice: _flapping(dice, dice.fabric_link()), 8.0),
    "neighbour flaps during a repair": (_repair, 12.0),
    "optic of four links": (_optic, 10.0),
}
"""Faults in turn, and seconds until one counts as missed."""
KINDS = tuple(_KINDS)
"""Kinds of faults, in the order in which they are drawn."""


def draw(fabric: Fabric, number: int, seed: int) -> Drawn:
    """A fault: the number says of which kind, and with the seed which one.

    Args:
        fabric: The fabric.
        number: Of the fault, from 0.
        seed: Of the generator.
    """
    generator = random.Random(f"{seed} {number}")
    dice = _Dice(Topology(fabric), generator, BEGINS_S + generator.random())
    kind = KINDS[number % len(KINDS)]
    drawing, limit_s = _KINDS[kind]
    found = drawing(dice)
    parts = [found] if isinstance(found, Part) else found
    return Drawn(kind, parts, limit_s, whole=any(part.injected.ended is not None for part in parts))


def drill(
    fabric: Fabric,
    number: int,
    seed: int,
    *,
    rate: int = RATE,
    evaluation_s: float = EVALUATION_S,
    baselines: bool = False,
) -> Outcome:
    """Draws a fault, lets it happen, and scores what the controller named.

    Args:
        fabric: The fabric.
        number: Of the fault, from 0.
        seed: Of the generator.
        rate: Probes a second of each host.
        evaluation_s: Seconds that an evaluation takes the controller.
        baselines: Also ask 007 and NetBouncer, at the end of the fault.
    """
    drawn = draw(fabric, number, seed)
    probed = ProbedFabric(
        fabric,
        faults=[part.fault for part in drawn.parts],
        seed=seed << 16 | number,
        rate=rate,
        evaluation_s=evaluation_s,
    )
    injected = [part.injected for part in drawn.parts]
    end = min(each.began for each in injected) + drawn.limit_s
    least = max(each.began for each in injected) + LEAST_S
    while probed.time < end:
        probed.run_until(probed.time + 0.25)
        found = score(injected, probed.named)
        if not drawn.whole and all(row.outcome == "right" for row in found.rows):
            named_at = max(row.injected.began + (row.after_s or 0.0) for row in found.rows)
            if probed.time >= max(least, named_at + WATCHED_S):
                break
    blamed = _baselines(probed.observations(), injected) if baselines else {}
    over = [each if each.ended is not None else replace(each, ended=probed.time) for each in injected]
    return Outcome(drawn, score(over, probed.named), probed.named, blamed, probed.cost(), probed.time)


def quiet(fabric: Fabric, seconds: float, seed: int, *, rate: int = RATE) -> tuple[list[NamedFault], Cost]:
    """What is named while nothing is broken, with hosts that stall and incasts, and what probes cost.

    Every second a host is scheduled away for up to 3 s, and 32 hosts send 256 KiB each to one.

    Args:
        fabric: The fabric.
        seconds: Of virtual time.
        seed: Of the generator.
        rate: Probes a second of each host.
    """
    dice = random.Random(f"{seed} quiet")
    stalls, traffic = [], []
    for second in range(int(seconds)):
        begins = second + dice.random()
        stalls.append(Stall(dice.randrange(fabric.hosts), begins, begins + dice.uniform(0.1, 3.0)))
        receiver, *senders = dice.sample(range(fabric.hosts), min(33, fabric.hosts))
        traffic.append(
            {
                "kind": "incast",
                "start_us": begins * 1e6,
                "senders": senders,
                "receiver": receiver,
                "bytes": 1 << 18,
            }
        )
    probed = ProbedFabric(fabric, stalls=stalls, traffic=traffic, seed=seed, rate=rate)
    probed.run_until(seconds)
    return probed.named, probed.cost()


def _baselines(observations: list[Observation], injected: list[Injected]) -> dict[str, tuple[int, int, int]]:
    """What 007 and NetBouncer blame."""
    lossy = {component for each in observations if each.lost for component in each.components}
    # NetBouncer looks at all components. Those that share no path with a lossy one are healthy anyway.
    near = [each for each in observations if not lossy.isdisjoint(each.components)]
    found: dict[str, set[tuple[str, str]]] = {
        "007": {component.part for component in votes(observations)},
        "NetBouncer": {component.part for component in netbouncer(near)},
    }
    parts = {each.component.part for each in injected}
    return {name: (len(blamed), len(blamed & parts), len(parts & blamed)) for name, blamed in found.items()}
