"""The configuration data of one switch, for all platforms (docs/spec/fabric.md, "What switches are told")."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from openmrc.errors import ArgumentError
from openmrc.fabric.spec import Platform, Qos, Specification
from openmrc.fabric.topology import Fabric, SwitchId
from openmrc.switchconf.devices import Asic, PortRow
from openmrc.switchconf.interfaces import Interfaces

RED_MBIT = 34_359
"""Highest ``bandwidth`` that tc accepts for red: 2**32 - 1 bytes per second.

It affects only how the average decays while a queue is empty, so a lower value does no harm."""

CUMULUS_LOCATORS = 256
"""Most SRv6 locators of a Cumulus Linux switch (its user guide, "Segment Routing")."""

SMALLEST_SHARE, LARGEST_SHARE = -8, 7
"""Of SONiC's ``dynamic_th``."""

# Traffic classes, and the queues of the same numbers. Packets that this switch trims have their own class
# where a platform derives their code point from it. Packets that arrive trimmed have another one, so that a
# last hop does not rewrite the code point of an earlier switch.
PLAIN, DATA, TRIMMED, CONTROL = 0, 1, 5, 6
# SONiC writes code points by class. So each code point has its own class there; all others are PLAIN.
RETRANSMISSION, ARRIVED, ARRIVED_LAST_HOP = 2, 3, 4


class PortFacts(NamedTuple):
    """A connected port."""

    interface: str
    link: str
    """Name of the link, for descriptions."""
    address: str
    uplink: bool
    ecn: bool
    """Whether its queue marks ECN: T0 uplinks and all ports of higher tiers, not the last hop."""
    row: PortRow | None
    """Its entry in the PORT table of SONiC, if that is known."""
    cage: int
    """Cage, from 1."""


class RouteFacts(NamedTuple):
    """A static route."""

    prefix: str
    interface: str
    next_hop: str


@dataclass(frozen=True)
class QosFacts:
    """Queue settings in bytes, computed from shares of a plane's bandwidth-delay product."""

    classes: dict[int, int]
    """Code point -> traffic class, one class per code point; all other code points are PLAIN."""
    plain_codes: tuple[int, ...]
    data_codes: tuple[int, ...]
    control_codes: tuple[int, ...]
    other_codes: tuple[int, ...]
    """All code points that are neither data nor control."""
    trimmed_code: int
    trimmed_last_hop_code: int
    ecn_min: int
    ecn_max: int
    limit: int
    """Longest data queue; further packets are trimmed or dropped."""
    limit_last_hop: int
    control_limit: int
    trim_size: int
    mtu: int

    @classmethod
    def of(cls, spec: Specification, port_rate: int) -> "QosFacts":
        """The settings for ports of a rate (bit/s)."""
        qos: Qos = spec.qos
        bdp = port_rate * qos.base_rtt_us / 8e6
        codes = qos.dscp
        data = (codes.data, codes.retransmission)
        control = tuple(sorted((codes.trimmed, codes.trimmed_last_hop, codes.control)))
        return cls(
            classes={
                codes.no_trim: PLAIN,
                codes.data: DATA,
                codes.retransmission: RETRANSMISSION,
                codes.trimmed: ARRIVED,
                codes.trimmed_last_hop: ARRIVED_LAST_HOP,
                codes.control: CONTROL,
            },
            plain_codes=(codes.no_trim,),
            data_codes=data,
            control_codes=control,
            other_codes=tuple(code for code in range(64) if code not in (*data, *control)),
            trimmed_code=codes.trimmed,
            trimmed_last_hop_code=codes.trimmed_last_hop,
            ecn_min=round(qos.ecn_min * bdp),
            ecn_max=round(qos.ecn_max * bdp),
            limit=round(qos.trim * bdp),
            limit_last_hop=round(qos.trim_last_hop * bdp),
            control_limit=round(bdp),
            trim_size=qos.trim_size,
            mtu=qos.mtu,
        )


@dataclass(frozen=True)
class SwitchFacts:
    """A switch."""

    name: str
    hostname: str
    fabric: str
    tier: int
    own: list[str]
    """The /48 prefixes of its uSIDs."""
    own_usids: list[int]
    routes: list[RouteFacts]
    ports: list[PortFacts]
    port_rate: int
    """bit/s"""
    breakout: int
    """Ports per cage."""
    qos: QosFacts
    block: str
    """The uSID block, a /32."""
    asic: Asic | None
    """The chip, if the fabric names the switch."""

    @property
    def trim_size(self) -> int:
        """Length of a packet that this switch has trimmed, bytes."""
        fixed = self.asic.trim_size if self.asic else None
        return self.qos.trim_size if fixed is None else fixed

    @property
    def trim_queue(self) -> int:
        """The queue of packets that this switch has trimmed (SONiC)."""
        fixed = self.asic.trim_queue if self.asic else None
        return CONTROL if fixed is None else fixed

    def threshold(self, limit: int) -> tuple[str, int]:
        """The field and value of a buffer profile whose queue holds at most ``limit`` bytes (SONiC)."""
        pool = self.asic.shared_pool if self.asic else None
        if pool is None:
            return "static_th", limit
        # A queue may take 2**n of what is free of the pool.
        share = round(math.log2(limit / pool)) if limit else SMALLEST_SHARE
        return "dynamic_th", min(max(share, SMALLEST_SHARE), LARGEST_SHARE)

    @property
    def frr(self) -> str:
        """The oldest release of FRR; 10.3 and 10.4 install one uN SID only, whatever is configured."""
        return "10.3" if len(self.own) == 1 else "10.5"

    @property
    def red_mbit(self) -> int:
        """The ``bandwidth`` of red, Mbit/s."""
        return min(self.port_rate // 10**6, RED_MBIT)

    @property
    def marking(self) -> list[str]:
        """Interfaces that mark ECN."""
        return [port.interface for port in self.ports if port.ecn]

    @property
    def last_hop(self) -> list[str]:
        """Interfaces towards hosts."""
        return [port.interface for port in self.ports if not port.ecn]

    @property
    def interfaces(self) -> list[str]:
        """All of them."""
        return [port.interface for port in self.ports]


class Facts:
    """The facts of each switch of a fabric for a platform.

    Raises:
        ArgumentError: if the fabric cannot be addressed.
    """

    def __init__(self, fabric: Fabric, platform: Platform) -> None:
        fabric.core.check_addresses()
        self._fabric = fabric
        self._interfaces = Interfaces(fabric, platform)
        self._qos = QosFacts.of(fabric.spec, fabric.port_rate)
        self._block = prefix_text(fabric)
        usids = max(len(fabric.table(SwitchId(0, tier, 0)).own) for tier in range(fabric.tiers))
        if platform == "cumulus" and usids > CUMULUS_LOCATORS:
            raise ArgumentError(
                f"parallel_links: a switch of this fabric has {usids} uSIDs of its own, "
                f"but Cumulus Linux has {CUMULUS_LOCATORS} locators at most; take fewer parallel links"
            )

    def of(self, switch: SwitchId) -> SwitchFacts:
        """The facts of a switch."""
        fabric, interfaces = self._fabric, self._interfaces
        own, entries = fabric.table(switch)
        ports = fabric.ports(switch)
        names = {port.number: interfaces.name(port) for port in ports}
        next_hops = {port.number: port.peer_address for port in ports}
        facts = [
            PortFacts(
                names[port.number],
                port.link,
                port.address,
                port.is_uplink,
                port.is_uplink or switch.tier > 0,
                interfaces.row(port),
                interfaces.cage(port),
            )
            for port in ports
        ]
        block = self._block
        return SwitchFacts(
            name=str(switch),
            hostname=str(switch).replace("/", "-"),
            fabric=fabric.spec.name,
            tier=switch.tier,
            own=[f"{block}{usid:x}::/48" for usid in own],
            own_usids=own,
            routes=[
                RouteFacts(f"{block}{usid:x}::/48", names[port], next_hops[port]) for usid, port in entries
            ],
            ports=facts,
            port_rate=fabric.port_rate,
            breakout=interfaces.per_cage,
            qos=self._qos,
            block=fabric.spec.addressing.block,
            asic=interfaces.hardware.asic,
        )


def prefix_text(fabric: Fabric) -> str:
    """The uSID block as the first part of an address: ``5f00:0:``."""
    block = fabric.spec.prefix_bits()[0]
    return f"{block >> 16:x}:{block & 0xFFFF:x}:"
