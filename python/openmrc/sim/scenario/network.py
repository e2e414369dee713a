"""The fabric, how fast and long its parts are, and the queues of its switches.

Lengths of queues without a unit are multiples of a plane's bandwidth-delay product: port rate x base RTT,
where the base RTT follows from cables and switches.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    StrictInt,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

from openmrc import _core
from openmrc.errors import Error
from openmrc.fabric.topology import Fabric
from openmrc.fabric.units import Length, Rate, Ratio
from openmrc.sim.scenario.part import OPEN, Part

_Ratio = Annotated[Ratio, PlainSerializer(lambda r: f"{r.numerator}:{r.denominator}", when_used="json")]
_Ratios = Annotated[list[_Ratio], BeforeValidator(lambda v: v if isinstance(v, list | tuple) else [v])]


class Nic(Part):
    """The hosts' network cards."""

    rate: Rate
    """All ports together, bit/s: one port for each plane. Also as ``800G``."""


class Cables(Part):
    """Length of the cables of each layer, metres; also as ``30 m``. A signal takes 5 ns for a metre."""

    host_t0: Length = OPEN
    """From host to T0."""
    t0_t1: Length = OPEN
    """From T0 to T1."""
    t1_t2: Length = OPEN
    """From T1 to T2."""
    t2_t3: Length = OPEN
    """From T2 to T3."""


class Topology(Part):
    """The smallest fabric for these numbers (docs/spec/fabric.md); counts left open are computed.

    Its fields have the names and units of a fabric file. ``fabric`` takes all of them from such a file.
    """

    fabric: Annotated[Path | None, Field(exclude=True)] = None
    """A fabric file, as ``openmrc plan`` reads it, relative to the scenario's own file. What is given beside
    it has to be the same."""
    hosts: StrictInt
    nic: Nic | None = OPEN
    """100 Gb/s for each plane if left open."""
    planes: StrictInt = OPEN
    tiers: StrictInt = OPEN
    radix: StrictInt
    """Ports of a switch."""
    hosts_per_t0: StrictInt | None = OPEN
    uplinks_per_t0: StrictInt | None = OPEN
    t0s_per_pod: StrictInt | None = OPEN
    parallel_links: StrictInt | None = OPEN
    """Links from one T0 (with three tiers: pod) to one top switch."""
    oversubscription: _Ratios = OPEN
    """Downlink to uplink bandwidth of a T0; a list for T0, T1 and T2."""
    cables: Cables = Cables()

    @model_validator(mode="before")
    @classmethod
    def _from_fabric(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or value.get("fabric") is None:
            return value
        beside = (info.context or {}).get("beside", Path())
        path = beside / value["fabric"]
        fields = planned_topology(path)
        for name in set(value) & set(fields):
            read: TypeAdapter[Any] = TypeAdapter(cls.model_fields[name].rebuild_annotation())
            if read.validate_python(value[name]) != read.validate_python(fields[name]):
                raise ValueError(f"{name}: {path.name} says otherwise; leave it out here")
        return {**value, **fields, "fabric": path}

    @property
    def port_rate(self) -> int:
        """Rate of a port, bit/s."""
        return _core.DEFAULT_PORT_RATE if self.nic is None else self.nic.rate // self.planes


def planned(path: Path) -> Fabric:
    """The fabric of a file.

    Raises:
        ValueError: if it cannot be read, or is no fabric.
    """
    try:
        return Fabric.load(path)
    except OSError as error:
        raise ValueError(f"fabric: {path}: {error.strerror}") from None
    except Error as error:
        raise ValueError(f"fabric: {error}") from None


def planned_topology(path: Path) -> dict[str, Any]:
    """The fields of the topology of a fabric file, every count as the planner computes it.

    Raises:
        ValueError: as :func:`planned`.
    """
    return topology_of(planned(path))


def topology_of(fabric: Fabric) -> dict[str, Any]:
    """The fields of the topology of a fabric, every count as the planner computes it."""
    core, spec = fabric.core, fabric.spec
    fields: dict[str, Any] = {
        "hosts": core.hosts,
        "nic": {"rate": spec.nic.rate},
        "planes": core.planes,
        "tiers": core.tiers,
        "radix": core.radix,
        "hosts_per_t0": core.hosts_per_t0,
        "oversubscription": [f"{r.numerator}:{r.denominator}" for r in spec.oversubscription],
        "cables": dict(spec.cables),
    }
    if core.tiers > 1:
        fields |= {"uplinks_per_t0": core.uplinks(0), "parallel_links": core.parallel}
    if core.tiers > 2:
        fields["t0s_per_pod"] = core.group[0]
    return fields


class Pfc(Part):
    """Priority flow control of the data class: senders are stopped, nothing is dropped for want of room."""

    buffer: StrictInt | None = OPEN
    """Buffer of a switch, bytes; follows from the switch's capacity if left open."""
    alpha: float = OPEN
    """What a port may hold of the shared buffer, as a multiple of what is free."""
    xoff: StrictInt | None = OPEN
    """Static threshold beside that, bytes."""
    xon_offset: StrictInt | None = OPEN
    """A port's peer may go on when the port holds this many bytes less than its threshold."""
    headroom: StrictInt | None = OPEN
    """Set aside for each port, bytes; what its cable and the longest packets need if left open."""


class Switch(Part):
    """Queues of a switch port. What is left open is as the preset has it."""

    preset: Literal["mrc", "rocev2", "rocev2-lossy", "adaptive"] | None = OPEN
    """What the transport is meant for if left open.

    ``mrc``: trimming, ECN but not towards hosts, control first (docs/spec/congestion.md, "Switch settings").
    ``rocev2``: PFC, and DCQCN's marking on every hop (docs/spec/baselines.md). ``rocev2-lossy``: drops beyond
    a long
    queue instead of PFC. ``adaptive``: PFC, no ECN.
    """
    overflow: Literal["trim", "drop"] | None = OPEN
    """What becomes of data that would have to wait behind more than ``trim``."""
    trim: float | None = OPEN
    """Longest data queue."""
    trim_bytes: StrictInt | None = OPEN
    """The same in bytes, instead of ``trim``."""
    trim_last_hop: float | None = OPEN
    """Longest data queue towards a host."""
    trim_last_hop_bytes: StrictInt | None = OPEN
    """The same in bytes, instead of ``trim_last_hop``."""
    control: float | None = OPEN
    """Longest control queue; what is beyond is dropped."""
    control_share: float | None = OPEN
    """The control queue's share of the port under weighted scheduling; control goes first if left open."""
    ecn: bool | None = OPEN
    """Whether switches mark packets."""
    ecn_min: float | None = OPEN
    """Marking begins at this length, looked at when a packet leaves the queue."""
    ecn_max: float | None = OPEN
    """From this length on every packet is marked; equal to ``ecn_min`` for a step."""
    ecn_min_bytes: StrictInt | None = OPEN
    """Kmin in bytes, instead of ``ecn_min``."""
    ecn_max_bytes: StrictInt | None = OPEN
    """Kmax in bytes, instead of ``ecn_max``."""
    ecn_probability: float | None = OPEN
    """Probability just below ``ecn_max``: Pmax."""
    ecn_last_hop: bool | None = OPEN
    """Whether ports towards hosts mark too. MRC's do not: marks there would report an incast, which no other
    path avoids."""
    pfc: bool | Pfc | None = OPEN
    """PFC, with its defaults or others; ``false`` turns the preset's off."""
    slow_queues: Literal["configured", "scaled"] = OPEN
    """Queues of a link that a fault makes slow: ``configured`` bytes, as switches have them, or ``scaled``
    with the rate. PFC's thresholds stay."""
    exact: bool = OPEN
    """Real queues instead of departures computed on arrival: about twice as slow. PFC and ``control_share``
    have them anyway."""


class Software(Part):
    """Hosts whose NIC is software, as the endpoint of this project is: MRC only."""

    receive_buffer: StrictInt = OPEN
    """Receive buffer of a port, bytes of the host's memory: a packet takes 1,024 more than its own. What does
    not fit is dropped."""
    service_rate: Rate = OPEN
    """Rate at which a host handles the packets of all its ports, in the order of arrival, bit/s; also as
    ``20G``."""
    burst: StrictInt = OPEN
    """Most consecutive packets of a queue pair, and of a path."""
    base_rtt_us: float = OPEN
    """Round trip that loss detection starts from: most of it passes in the host."""


class Network(Part):
    """How fast and how clever the parts of the fabric are."""

    switch_latency_ns: float = OPEN
    """From the last bit of a packet arriving at a switch until the packet is in its queue."""
    nic_latency_ns: float = OPEN
    """From the last bit of a packet arriving at a NIC until the transport has the packet."""
    encapsulation: Literal["srv6", "udp"] | None = OPEN
    """Headers on every cable, with or without the outer IPv6 header; what the transport is meant for if left
    open."""
    routing: Literal["source", "ecmp", "adaptive"] | None = OPEN
    """Entropy values are paths (``source``) or hashed (``ecmp``), or the least loaded uplink is taken
    (``adaptive``); what the transport is meant for if left open."""
    reroutes: bool | None = OPEN
    """Whether switches route around links that are down; unless entropy values are paths if left open."""
    detection_us: float = OPEN
    """From a link's loss of carrier, or its return, until its own switches know."""
    silent_detection_us: float = OPEN
    """The same for a link that loses every packet and has a carrier: BFD; a hold timer takes 9 to 180 s."""
    convergence_us: float = OPEN
    """From there until all switches route accordingly (BGP): 0.1 s to tens of seconds."""
    mtu: StrictInt = OPEN
    """Payload bytes of a full data packet."""
    software: Software | None = OPEN
    """NICs are software, with receive buffers; hardware if left open."""
    switch: Switch = Switch()
