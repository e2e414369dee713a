"""Sizing: from a specification to the numbers of the smallest fabric that fits."""

from dataclasses import dataclass
from fractions import Fraction

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.fabric.catalogue import Catalogue, SwitchPart
from openmrc.fabric.spec import MAX_TIERS, Specification
from openmrc.fabric.units import format_rate

PLANE_CHOICES = (1, 2, 4, 8, 16)
"""Numbers of planes that ``planes: auto`` tries: NICs break out into powers of two."""


@dataclass(frozen=True)
class Size:
    """A fabric's arithmetic and what its ports are."""

    core: _core.Fabric
    port_rate: int
    """Rate of a port of a plane, bit/s."""
    switch: SwitchPart | None
    """The part; ``None`` if the catalogue has none of the capacity."""
    capacity: int
    """All ports of a switch together, bit/s."""


def choose_switch(spec: Specification, catalogue: Catalogue) -> tuple[SwitchPart | None, int]:
    """The switch and its capacity in bit/s.

    Raises:
        ArgumentError: if the specification names a switch that the catalogue does not have.
    """
    choice = spec.switch
    if choice.radix is not None:
        assert spec.planes is not None  # the specification is consistent
        return None, choice.radix * spec.nic.rate // spec.planes
    part = catalogue.switch(choice.capacity, choice.model)
    if part is None and choice.model is not None:
        known = ", ".join(p.name for p in catalogue.switches) or "none"
        kind = f" of {format_rate(choice.capacity)}" if choice.capacity else ""
        raise ArgumentError(f"switch.model: {catalogue.name} has no {choice.model}{kind}; it has {known}")
    if choice.capacity is not None:
        return part, choice.capacity
    assert part is not None
    return part, part.capacity


def radix(capacity: int, rate: int, planes: int, switch: SwitchPart | None) -> int:
    """Ports of a switch at the rate of a plane: k = C / (R / P).

    Raises:
        ArgumentError: if the capacity is no whole number of such ports, or the switch has fewer.
    """
    if rate % planes:
        raise ArgumentError(f"planes: a {format_rate(rate)} NIC does not break out into {planes} equal ports")
    port = rate // planes
    ports, rest = divmod(capacity, port)
    what = f"{format_rate(capacity)} switch"
    if rest or not ports:
        raise ArgumentError(f"switch.capacity: a {what} has no whole number of {format_rate(port)} ports")
    if switch is not None and ports > switch.max_ports:
        raise ArgumentError(
            f"planes: {planes} planes need {format_rate(port)} ports, {ports} of them on a {what}, "
            f"but {switch.name} breaks out into {switch.max_ports} at most"
        )
    return ports


def solve(spec: Specification, catalogue: Catalogue) -> Size:
    """The smallest fabric that the specification allows.

    Raises:
        ArgumentError: if there is none, with the field and the numbers of the nearest attempt.
    """
    switch, capacity = choose_switch(spec, catalogue)
    best: Size | None = None
    refusal: ArgumentError | None = None
    for planes in [spec.planes] if spec.planes is not None else PLANE_CHOICES:
        try:
            size = _solve(spec, planes, switch, capacity)
        except ArgumentError as error:
            refusal = refusal or error
            continue
        if best is None or switches(size.core) < switches(best.core):
            best = size
    if best is None:
        assert refusal is not None
        if spec.planes is None:
            raise ArgumentError(
                f"planes: none of {', '.join(map(str, PLANE_CHOICES))} fits; with 1: {refusal}"
            )
        raise refusal
    return best


def switches(core: _core.Fabric) -> int:
    """Switches of all planes."""
    return core.planes * sum(core.switches_per_tier)


def _solve(spec: Specification, planes: int, switch: SwitchPart | None, capacity: int) -> Size:
    ports = radix(capacity, spec.nic.rate, planes, switch)
    tiers = [spec.tiers] if spec.tiers is not None else range(1, MAX_TIERS + 1)
    asks_uplinks = spec.uplinks_per_t0 or spec.parallel_links
    refusal: ArgumentError | None = None
    for count in tiers:
        if spec.tiers is None and ((count == 1 and asks_uplinks) or (count < 3 and spec.t0s_per_pod)):
            continue
        try:
            core = build(
                spec.hosts,
                planes,
                count,
                ports,
                oversubscription=spec.oversubscription,
                hosts_per_t0=spec.hosts_per_t0,
                uplinks_per_t0=spec.uplinks_per_t0,
                t0s_per_pod=spec.t0s_per_pod,
                parallel=spec.parallel_links,
                prefixes=spec.prefix_bits(),
            )
        except ArgumentError as error:
            refusal = error
            continue
        if count > 1 and core.blocks[count - 2] == 1:
            block = ("T0", "pod", "zone")[count - 2]
            raise ArgumentError(
                f"tiers: one {block} holds all {spec.hosts} hosts, so no packet would cross "
                f"the T{count - 1}s; ask for {count - 1}"
            )
        return Size(core, spec.nic.rate // planes, switch, capacity)
    assert refusal is not None
    raise refusal


def build(
    hosts: int,
    planes: int,
    tiers: int,
    radix: int,
    *,
    oversubscription: list[Fraction] | None = None,
    hosts_per_t0: int | None = None,
    uplinks_per_t0: int | None = None,
    t0s_per_pod: int | None = None,
    parallel: int | None = None,
    prefixes: tuple[int, int] = (0x5F00_0000, 0xFD5F_0000),
) -> _core.Fabric:
    """The smallest fabric of a given number of planes and tiers.

    Raises:
        ArgumentError: if there is none.
    """
    block, link_prefix = prefixes
    return _core.Fabric.smallest(
        hosts,
        planes,
        tiers,
        radix,
        oversubscription=_ratios(oversubscription),
        hosts_per_t0=hosts_per_t0,
        uplinks_per_t0=uplinks_per_t0,
        t0s_per_pod=t0s_per_pod,
        parallel=parallel,
        block=block,
        link_prefix=link_prefix,
    )


def capacity(tiers: int, radix: int, oversubscription: list[Fraction] | None = None) -> int:
    """The number of hosts of the largest fabric with this number of tiers.

    Raises:
        ArgumentError: if the radix is too small for any.
    """
    return _core.Fabric.capacity(tiers, radix, _ratios(oversubscription))


def _ratios(given: list[Fraction] | None) -> list[tuple[int, int]]:
    """(down, up) for tiers 0, 1 and 2; tiers that are not given are non-blocking."""
    ratios = [*(given or []), Fraction(1), Fraction(1), Fraction(1)][:3]
    return [(r.numerator, r.denominator) for r in ratios]
