"""Reports of a plan: tables for a terminal and for a page, JSON, CSV. Figures with a cost name their part."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.text import Text

from openmrc import csvcells
from openmrc.fabric.design import Design
from openmrc.fabric.plan import Baseline, Plan
from openmrc.fabric.topology import Path
from openmrc.fabric.units import format_rate
from openmrc.tables import Table

UNKNOWN = "-"


def tables(plan: Plan) -> Group:
    """The plan for a terminal."""
    asked = plan.asked
    parts: list[Text | Table] = [_headline(plan)]
    for table in filter(None, (materials(plan), losses(asked), comparison(plan))):
        parts += [Text(), table]
    parts += [Text(f"note: {note}", style="yellow") for note in asked.notes]
    parts.append(Text(sources(plan)))
    return Group(*parts)


def sources(plan: Plan) -> str:
    """Where the figures of the parts come from."""
    return f"figures of {plan.catalogue}: {plan.source}"


def sentence(plan: Plan) -> str:
    """What the fabric is."""
    asked = plan.asked
    text = (
        f"{asked.hosts:,} hosts with NICs of {_rate(asked.nic_rate)}, {asked.planes} x "
        f"{_rate(asked.port_rate)} each, in {asked.label}: {asked.switches:,} switches and "
        f"{asked.links:,} cables"
    )
    needs = [
        *([_power(asked.watts)] if asked.watts is not None else []),
        *([_cost(asked.price, plan.currency)] if asked.price is not None else []),
    ]
    return f"{text}; {' and '.join(needs)}." if needs else f"{text}."


def facts(plan: Plan) -> list[tuple[str, str]]:
    """What is asked first of a fabric: name and value of each figure, with its unit."""
    asked = plan.asked

    def known(text: str) -> str:
        return "unknown" if text == UNKNOWN else text

    return [
        ("hosts", f"{asked.hosts:,}"),
        ("room for hosts", f"{asked.most_hosts:,}"),
        ("switches", f"{asked.switches:,}"),
        ("cables", f"{asked.links:,}"),
        ("transceivers", known(_count(asked.modules))),
        ("bandwidth of all links", _rate(float(f"{asked.optics_bandwidth:.4g}"))),
        ("power, without hosts", known(_power(asked.watts))),
        ("cost, without hosts", known(_cost(asked.price, plan.currency))),
        ("hosts under a T0", f"{asked.hosts_per_t0:,}"),
        ("paths between far hosts", f"{asked.paths_far:,}"),
        ("longest path", _switches(asked.longest_path)),
        ("base latency across", known(_us(asked.latency_far_ns))),
    ]


def _headline(plan: Plan) -> Text:
    asked, core = plan.asked, plan.asked.core
    port = format_rate(asked.port_rate)
    lines = [
        f"{plan.fabric.spec.name}: {asked.hosts:,} hosts, {format_rate(asked.nic_rate)} NICs as "
        f"{asked.planes} x {port}, {asked.label}, switches of {core.radix} x {port}",
        f"{asked.hosts_per_t0} hosts under a T0; room for {asked.most_hosts:,} hosts",
        f"paths: {asked.paths_near:,} under one T0, {asked.paths_far:,} across; "
        f"longest path {_switches(asked.longest_path)}",
        f"base latency, one way, {plan.fabric.spec.mtu} B: {_us(asked.latency_near_ns)} under one T0, "
        f"{_us(asked.latency_far_ns)} across",
    ]
    if core.parallel > 1:
        below = "T0" if asked.tiers == 2 else "pod" if asked.tiers == 3 else "zone"
        lines.insert(2, f"{core.parallel} parallel links from each {below} to each T{asked.tiers - 1}")
    return Text("\n".join(lines))


def materials(plan: Plan) -> Table:
    """The bill of materials, with its total, and that total per host."""
    asked = plan.asked
    rows: list[Sequence[str]] = []
    for row in asked.switch_rows:
        ports = f"{row.downlinks} down, {row.uplinks} up" if row.uplinks else f"{row.downlinks} down"
        cells = (
            f"{row.name} switches",
            f"{row.per_plane:,}",
            f"{row.count:,}",
            ports,
            row.part or UNKNOWN,
            "",
        )
        rows.append((*cells, _kw(row.watts), _money(row.price)))
    for link in asked.link_rows:
        each = f"{format_rate(link.rate)}, {link.length:g} m"
        part = " + ".join(p for p in (link.transceiver, link.cable) if p) or UNKNOWN
        cells = (
            f"{link.name} links",
            f"{link.per_plane:,}",
            f"{link.count:,}",
            each,
            part,
            _count(link.modules),
        )
        rows.append((*cells, _kw(link.watts), _money(link.price)))
    total = f"{asked.switches:,} switches, {asked.links:,} links"
    rows.append(("total", "", "", total, "", _count(asked.modules), _kw(asked.watts), _money(asked.price)))
    per_host = [None if v is None else v / asked.hosts for v in (asked.modules, asked.watts, asked.price)]
    modules, watts, price = per_host
    each = f"{asked.switches / asked.hosts:.4g} switches, {asked.links / asked.hosts:.4g} links"
    cost = UNKNOWN if price is None else f"{price:,.0f}"
    power = UNKNOWN if watts is None else f"{watts / 1000:.4g}"
    rows.append(("per host", "", "", each, "", UNKNOWN if modules is None else f"{modules:.4g}", power, cost))
    columns = ("", "per plane", "in all", "each", "part", "modules", "kW", plan.currency)
    title = f"Parts (figures: {plan.catalogue})"
    return Table(columns, rows, title=title, left=("", "part", "each"), totals=2)


def losses(asked: Design) -> Table:
    """The effect of each failure on the hosts that lose most."""
    rows = [
        (row.what, f"{row.count:,}", f"{row.hosts:,}", _percent(row.of_plane), _percent(row.of_host))
        for row in asked.loss_rows
    ]
    columns = ("lost", "there are", "hosts hit", "of its plane", "of its bandwidth")
    return Table(columns, rows, title="What one failure costs a host")


def comparison(plan: Plan) -> Table | None:
    """The fabric beside single-plane fabrics; ``None`` if there is none to compare it with."""
    if not any(baseline.design for baseline in plan.baselines):
        return None
    designs: list[tuple[str, Design | None, Baseline | None]] = [("this fabric", plan.asked, None)]
    designs += [(f"1 plane, {b.tiers} tiers", b.design, b) for b in plan.baselines if b.design]
    rows = [
        (label, *(UNKNOWN if d is None else cell(plan, d, b) for _, d, b in designs))
        for label, cell in _COMPARED
    ]
    refusals = [f"{name}: {b.refusal}" for name, _, b in designs if b is not None and b.refusal]
    return Table(
        ("", *(name for name, _, _ in designs)),
        rows,
        title="Compared with single-plane fabrics of the same switches"
        " (percentages: this fabric's share, per host)",
        note="; ".join(refusals) or None,
    )


def worst_loss(asked: Design) -> str:
    """The most that a host can lose by one failure."""
    share = max(row.of_host for row in asked.loss_rows)
    return (
        f"The worst failure of a single port, link or switch costs a host {_percent(share)} of its bandwidth."
    )


def hops(path: Path) -> Table:
    """The way of a packet: at each switch the uSID, the port, the link, and the address that is left."""
    addresses = path.addresses
    rows = [(path.src, "", f"p{path.plane}", path.first_link, str(addresses[0]))]
    for hop, after in zip(path.hops, addresses[1:], strict=True):
        rows.append((hop.switch, f"{hop.usid:#06x}", hop.port, hop.link, str(after)))
    rows.append((path.dst, f"{path.usids[-1]:#06x}", "", "", ""))
    return Table(("at", "uSID", "leaves by", "link", "outer destination on it"), rows, left=5)


def path_sentence(path: Path) -> str:
    """A path by its fields."""
    uplinks = ", ".join(f"T{tier} uplink {uplink}" for tier, uplink in enumerate(path.uplinks))
    fields = f"plane {path.plane}" + (f", {uplinks}" if uplinks else "")
    return f"{path.src} to {path.dst}, EV {path.ev:#010x}: {fields}"


def _with_share(plan: Plan, value: str, baseline: Baseline | None, what: str) -> str:
    compared = plan.compared_with(baseline) if baseline is not None else None
    share = getattr(compared, what) if compared is not None else None
    return value if share is None else f"{value} ({share:.0%})"


def _loss(design: Design, what: str) -> str:
    row = design.loss(what)
    return UNKNOWN if row is None else _percent(row.of_plane)


def _host_loss(design: Design) -> str:
    row = design.loss("NIC port")
    assert row is not None  # every design has NICs
    return _percent(row.of_host)


_COMPARED: tuple[tuple[str, Any], ...] = (
    ("hosts", lambda p, d, b: f"{d.hosts:,}"),
    ("ports of a switch", lambda p, d, b: f"{d.core.radix} x {format_rate(d.port_rate)}"),
    ("switches", lambda p, d, b: _with_share(p, f"{d.switches:,}", b, "switches")),
    (
        "optics: link bandwidth",
        lambda p, d, b: _with_share(p, format_rate(d.optics_bandwidth), b, "optics"),
    ),
    ("transceivers", lambda p, d, b: _count(d.modules)),
    ("kW", lambda p, d, b: _with_share(p, _kw(d.watts), b, "watts")),
    ("cost", lambda p, d, b: _with_share(p, _money(d.price), b, "price")),
    ("hosts under a T0", lambda p, d, b: f"{d.hosts_per_t0:,}"),
    ("longest path", lambda p, d, b: _switches(d.longest_path)),
    ("base latency across", lambda p, d, b: _us(d.latency_far_ns)),
    ("T0-T1 link lost", lambda p, d, b: _loss(d, "T0-T1 link")),
    ("NIC port lost", lambda p, d, b: _host_loss(d)),
)


# --- data --------------------------------------------------------------------------------------------------


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, for JSON. Rates in bit/s, lengths in metres, times in nanoseconds."""
    baselines = []
    for baseline in plan.baselines:
        compared = plan.compared_with(baseline)
        baselines.append(
            {
                "tiers": baseline.tiers,
                "refusal": baseline.refusal,
                "design": _design(baseline.design) if baseline.design else None,
                "this_fabric_per_host_relative": asdict(compared) if compared else None,
            }
        )
    return {
        "name": plan.fabric.spec.name,
        "catalogue": plan.catalogue,
        "currency": plan.currency,
        "source": plan.source,
        "fabric": _design(plan.asked),
        "single_plane": baselines,
    }


def _design(design: Design) -> dict[str, Any]:
    core = design.core
    return {
        "label": design.label,
        "hosts": design.hosts,
        "most_hosts": design.most_hosts,
        "nic_rate": design.nic_rate,
        "planes": design.planes,
        "port_rate": design.port_rate,
        "tiers": design.tiers,
        "radix": core.radix,
        "hosts_per_t0": design.hosts_per_t0,
        "uplinks": [core.uplinks(tier) for tier in range(design.tiers - 1)],
        "parallel_links": core.parallel,
        "switches": design.switches,
        "links": design.links,
        "transceivers": design.modules,
        "link_bandwidth": design.optics_bandwidth,
        "watts": design.watts,
        "price": design.price,
        "longest_path_switches": design.longest_path,
        "paths_under_t0": design.paths_near,
        "paths_across": design.paths_far,
        "latency_under_t0_ns": design.latency_near_ns,
        "latency_across_ns": design.latency_far_ns,
        "switches_by_tier": [{"name": row.name, **asdict(row)} for row in design.switch_rows],
        "links_by_layer": [{"name": row.name, **asdict(row)} for row in design.link_rows],
        "losses": [asdict(row) for row in design.loss_rows],
        "notes": list(design.notes),
    }


CSV_COLUMNS = (
    "design",
    "item",
    "per_plane",
    "count",
    "rate_bps",
    "length_m",
    "part",
    "cable",
    "transceivers",
    "watts",
    "price",
)


def as_csv(plan: Plan) -> str:
    """The bills of materials of all designs as CSV, a line per tier and layer."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    designs = [plan.asked, *(b.design for b in plan.baselines if b.design)]
    for design in designs:
        writer.writerows(map(csvcells.written, _csv_rows(design)))
    return out.getvalue()


def _csv_rows(design: Design) -> Iterator[tuple[object, ...]]:
    label = f"{design.label}, {design.hosts} hosts"
    for row in design.switch_rows:
        counts = (row.per_plane, row.count)
        yield (label, f"{row.name} switches", *counts, None, None, row.part, None, None, row.watts, row.price)
    for link in design.link_rows:
        figures = (link.per_plane, link.count, link.rate, link.length, link.transceiver, link.cable)
        yield (label, f"{link.name} links", *figures, link.modules, link.watts, link.price)


# --- text --------------------------------------------------------------------------------------------------


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _kw(watts: float | None) -> str:
    return UNKNOWN if watts is None else f"{watts / 1000:,.1f}"


def _power(watts: float | None) -> str:
    if watts is None:
        return UNKNOWN
    return f"{watts / 1e6:,.1f} MW" if watts >= 1e6 else f"{_kw(watts)} kW"


def _cost(amount: float | None, currency: str) -> str:
    if amount is None:
        return UNKNOWN
    return f"{amount / 1e6:,.1f} million {currency}" if amount >= 1e6 else f"{_money(amount)} {currency}"


def _money(amount: float | None) -> str:
    return UNKNOWN if amount is None else f"{amount:,.0f}"


def _rate(rate: float) -> str:
    text = format_rate(rate)
    return f"{text[:-1]} {text[-1]}b/s"


def _us(nanoseconds: float | None) -> str:
    return UNKNOWN if nanoseconds is None else f"{nanoseconds / 1000:.2f} us"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _switches(count: int) -> str:
    return f"{count} switch{'' if count == 1 else 'es'}"
