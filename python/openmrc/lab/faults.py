"""Cut links, stopped switches, links that lose or delay packets or are slow.

A cut takes the upper end of the link down: the lower end loses its carrier and keeps its configuration, as
with a pulled cable. Stopping a switch takes all its ports down. Everything else is silent: no port notices.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Literal

from openmrc.errors import ArgumentError, DeviceError, UnsupportedError
from openmrc.lab import counters, system
from openmrc.lab.layout import End, Layout, Link, namespace
from openmrc.lab.state import State
from openmrc.lab.switches import Configurations

Direction = Literal["both", "up", "down"]
"""Of a link: up is away from the hosts."""

MAX_DELAY_S = 4
"""Seconds of the longest delay of a link: netem takes 32 bits of nanoseconds."""

_LEAST_BURST = 32_768
"""Bytes, several packets of the largest MTU."""
_PASS, _DROP = 0xFFFF_FFFF, 2
"""TC_ACT_UNSPEC and TC_ACT_SHOT (linux/pkt_cls.h)."""
_LD_RANDOM = "32 0 0 4294963256"
"""Classic BPF: A = a random number of 32 bits (SKF_AD_OFF + SKF_AD_RANDOM, linux/filter.h)."""


def ports_down(layout: Layout, state: State) -> set[End]:
    """The interfaces that must be down because of the failures."""
    down = {layout.links[name].upper for name in state.cut}
    for switch in state.stopped:
        down.update(end for link in layout.links_of(switch) for end in link.ends if end.node == switch)
    return down


def apply_ports(layout: Layout, lab: str, before: set[End], after: set[End]) -> None:
    """Takes interfaces down and brings others up again, with their part of the switch's configuration.

    The kernel drops the addresses and routes of an interface that is taken down.
    """
    configurations = Configurations(layout)
    for node, ports in _by_node(after - before):
        system.ip((f"link set dev {port} down" for port in ports), namespace(lab, node))
    for node, ports in _by_node(before - after):
        system.ip(configurations.lines_of_ports(node, ports), namespace(lab, node))
    links = {layout.link(str(end)) for end in before - after}
    ends = {end for link in links if not after.intersection(link.ends) for end in link.ends}
    for node, ports in _by_node(ends):
        counters.wait_until_up(namespace(lab, node), ports)
        # A neighbour that was not found is looked up again with the next packet, not a second later.
        system.ip((f"neighbour flush dev {port}" for port in ports), namespace(lab, node))


def prepare_ports_down(lab: str, down: set[End]) -> list[system.PreparedTool]:
    """Prepared commands that take these interfaces down."""
    return [
        system.PreparedTool("ip", namespace(lab, node), [f"link set dev {port} down" for port in ports])
        for node, ports in _by_node(down)
    ]


def apply_loss(lab: str, link: Link, loss: float, direction: Direction = "both") -> None:
    """Makes a link lose this share of its packets, ``up`` is away from the hosts; 0 ends that."""
    senders = _senders(link, direction)
    for end in link.ends:
        space = namespace(lab, end.node)
        # Replacing the queueing discipline removes the filter.
        system.tc([f"qdisc replace dev {end.port} clsact"], space)
        system.tc([f"filter delete dev {end.port} egress"], space)
        if loss > 0 and end in senders:
            system.tc([_loss_filter(end, loss)], space)


def apply_shape(lab: str, link: Link, delay: float, rate: int | None) -> None:
    """Delays the packets of a link and limits its rate, in both directions.

    Args:
        lab: The lab's name.
        link: The link.
        delay: Seconds; 0: none.
        rate: Bits per second; ``None``: no limit.

    Raises:
        ArgumentError: for a time below 0.
        UnsupportedError: if the kernel cannot delay packets.
    """
    if not 0 <= delay <= MAX_DELAY_S:
        raise ArgumentError(f"delay: {delay:g} s is not a time from 0 to {MAX_DELAY_S} s")
    for end in link.ends:
        space = namespace(lab, end.node)
        if not delay and rate is None:
            with suppress(DeviceError):  # There may be none.
                system.tc([f"qdisc delete dev {end.port} root"], space)
            continue
        try:
            system.tc([f"qdisc replace dev {end.port} root {_shape(delay, rate)}"], space)
        except DeviceError as error:
            if delay and "kind is unknown" in str(error):
                raise UnsupportedError(
                    "this kernel cannot delay packets: it has no netem (CONFIG_NET_SCH_NETEM)"
                ) from None
            raise


def _shape(delay: float, rate: int | None) -> str:
    if delay:
        # Room for what is on its way: more packets than any link of a lab has.
        limited = "" if rate is None else f" rate {rate}bit"
        return f"netem limit 1000000 delay {round(delay * 1e6)}us{limited}"
    # The bucket holds 10 ms, so that a kernel that refills it a hundred times a second reaches the rate.
    return f"tbf rate {rate}bit burst {max(_LEAST_BURST, (rate or 0) // 800)} latency 50ms"


def prepare_loss(lab: str, link: Link, loss: float, direction: Direction) -> list[system.PreparedTool]:
    """Prepared commands that make a link lose this share of its packets."""
    apply_loss(lab, link, 0.0)
    return [
        system.PreparedTool("tc", namespace(lab, end.node), [_loss_filter(end, loss)])
        for end in _senders(link, direction)
    ]


def _senders(link: Link, direction: Direction) -> Collection[End]:
    """The ends whose packets go in this direction."""
    return {"both": link.ends, "up": (link.lower,), "down": (link.upper,)}[direction]


def _loss_filter(end: End, loss: float) -> str:
    return f"filter add dev {end.port} egress bpf direct-action bytecode '{loss_program(loss)}'"


def loss_program(loss: float) -> str:
    """A classic BPF program for tc that drops this share of all packets.

    Raises:
        ArgumentError: if it is not 0 to 1.
    """
    if not 0 <= loss <= 1:
        raise ArgumentError(f"loss: {loss:g} is not a share from 0 to 1")
    if loss == 1:
        return f"1,6 0 0 {_DROP}"
    below = round(loss * (1 << 32))
    # If the random number is at least `below`, skip one instruction.
    return f"4,{_LD_RANDOM},53 1 0 {min(below, (1 << 32) - 1)},6 0 0 {_DROP},6 0 0 {_PASS}"


def _by_node(ends: Iterable[End]) -> Iterator[tuple[str, list[str]]]:
    nodes: dict[str, list[str]] = {}
    for end in sorted(ends):
        nodes.setdefault(end.node, []).append(end.port)
    yield from nodes.items()
