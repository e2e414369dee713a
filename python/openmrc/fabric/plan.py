"""The planner: a fabric with its parts, compared with single-plane fabrics (docs/spec/fabric.md)."""

import io
from dataclasses import dataclass, replace
from pathlib import Path as FilePath

from openmrc.errors import ArgumentError
from openmrc.fabric import sizing
from openmrc.fabric.design import Design, build
from openmrc.fabric.spec import MAX_HOSTS
from openmrc.fabric.topology import Fabric

BASELINE_TIERS = (2, 3, 4)
"""Tiers of the single-plane Clos fabrics of the comparison."""


@dataclass(frozen=True)
class Baseline:
    """A single-plane fabric of the same switches.

    It has the same number of hosts, or, if its tiers cannot hold them, as many as it can have. Figures are
    compared per host then. One with more tiers than the hosts need, or more tiers and no more hosts, is no
    alternative and has no design; nor is the fabric itself.
    """

    tiers: int
    design: Design | None
    refusal: str | None
    """Why it has another size, or no design."""


@dataclass(frozen=True)
class Comparison:
    """The fabric's figures as shares of a baseline's figures, per host."""

    switches: float
    optics: float
    """By bandwidth of all links: eight links of 100 Gb/s need as much as one of 800 Gb/s."""
    watts: float | None
    price: float | None


@dataclass(frozen=True, repr=False)
class Plan:
    """What :func:`plan` returns."""

    fabric: Fabric
    asked: Design
    baselines: tuple[Baseline, ...]

    def __repr__(self) -> str:
        asked = self.asked
        return f"<Plan of {asked.hosts:,} hosts: {asked.label}, {asked.switches:,} switches>"

    def _repr_html_(self) -> str:
        # An import circle: the report reads plans, and a notebook shows a plan as its report.
        from rich.console import Console

        from openmrc import notebook
        from openmrc.fabric import report

        # Jupyter would show what a console prints, besides what is returned.
        console = Console(width=140, file=io.StringIO(), color_system=None, force_jupyter=False)
        console.print(report.tables(self))
        return notebook.preformatted(console.file.getvalue())  # type: ignore[attr-defined]

    def report(self, path: FilePath | str) -> None:
        """Writes the plan as one HTML file for others to read: figures, drawing, tables, addresses.

        Raises:
            Error: if matplotlib is not installed.
            OSError: if the file cannot be written.
        """
        # An import circle, as above.
        from openmrc.fabric import page

        page.write(self, path)

    @property
    def catalogue(self) -> str:
        """The catalogue with all figures."""
        return self.fabric.catalogue.name

    @property
    def source(self) -> str:
        """Where the catalogue's figures come from."""
        return self.fabric.catalogue.source

    @property
    def currency(self) -> str:
        """The currency of all prices."""
        return self.fabric.catalogue.currency

    def baseline(self, tiers: int) -> Baseline:
        """The single-plane fabric with this number of tiers."""
        return next(b for b in self.baselines if b.tiers == tiers)

    def compared_with(self, baseline: Baseline) -> Comparison | None:
        """The fabric relative to a baseline, per host; ``None`` if there is no such baseline."""
        other = baseline.design
        if other is None:
            return None

        def share(mine: float | None, theirs: float | None) -> float | None:
            if mine is None or theirs is None or not theirs:
                return None
            return (mine / self.asked.hosts) / (theirs / other.hosts)

        switches = share(self.asked.switches, other.switches)
        optics = share(self.asked.optics_bandwidth, other.optics_bandwidth)
        assert switches is not None
        assert optics is not None
        return Comparison(
            switches, optics, share(self.asked.watts, other.watts), share(self.asked.price, other.price)
        )


def plan(fabric: Fabric) -> Plan:
    """Plans a fabric: its parts, and single-plane fabrics of up to four tiers for comparison.

    Raises:
        ArgumentError: if its switches have too few cages for every choice of the catalogue's modules.
    """
    spec, size = fabric.spec, fabric.size
    label = f"{_count(fabric.planes, 'plane')}, {_count(fabric.tiers, 'tier')}"
    asked = build(
        fabric.core,
        label=label,
        nic_rate=spec.nic.rate,
        switch=size.switch,
        catalogue=fabric.catalogue,
        cables=spec.cables,
        mtu=spec.mtu,
    )
    try:
        fabric.core.check_addresses()
    except ArgumentError as error:
        asked = replace(asked, notes=(*asked.notes, f"no SRv6 paths: {error}"))
    return Plan(fabric, asked, tuple(_baseline(fabric, tiers) for tiers in BASELINE_TIERS))


def _baseline(fabric: Fabric, tiers: int) -> Baseline:
    """The single-plane fabric with this number of tiers, with the same switches and oversubscription."""
    spec, size = fabric.spec, fabric.size
    refusal = None
    if (fabric.planes, fabric.tiers) == (1, tiers):
        return Baseline(tiers, None, "it is this fabric")
    try:
        ports = sizing.radix(size.capacity, spec.nic.rate, 1, size.switch)
        most = min(sizing.capacity(tiers, ports, spec.oversubscription), MAX_HOSTS)
        fewer = sizing.capacity(tiers - 1, ports, spec.oversubscription)
        hosts = fabric.hosts
        if hosts > most and fewer >= most:
            return Baseline(tiers, None, f"fewer tiers hold {most:,} hosts too")
        if hosts > most:
            refusal = f"holds at most {most:,} hosts, shown at that size"
        elif hosts <= fewer:
            return Baseline(tiers, None, f"fewer tiers hold {hosts:,} hosts")
        core = sizing.build(
            most if refusal else hosts, 1, tiers, ports, oversubscription=spec.oversubscription
        )
        design = build(
            core,
            label=f"1 plane, {tiers} tiers",
            nic_rate=spec.nic.rate,
            switch=size.switch,
            catalogue=fabric.catalogue,
            cables=spec.cables,
            mtu=spec.mtu,
        )
    except ArgumentError as error:
        return Baseline(tiers, None, str(error))
    return Baseline(tiers, design, refusal)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
