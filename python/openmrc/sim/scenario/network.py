"""The fabric, how fast and long its parts are, and the queues of its switches.

Thresholds are shares of a plane's bandwidth-delay product, port rate x base RTT, where the base RTT follows
from cables and switches.
"""

from fractions import Fraction
from typing import Annotated, Literal, Self

from pydantic import Field, StrictInt, model_validator

from openmrc.fabric.units import Rate, Ratio
from openmrc.sim.scenario.fields import Amount, Count, Micros, Nanos, Part, Probability, Share


class Topology(Part):
    """The smallest fabric for these numbers (spec: fabric); counts left open are computed."""

    hosts: Annotated[StrictInt, Field(ge=2, lt=1 << 32)]
    planes: Annotated[StrictInt, Field(ge=1, le=16)] = 1
    tiers: Annotated[StrictInt, Field(ge=1, le=4)] = 2
    radix: Count
    """Ports of a switch."""
    hosts_per_t0: Count | None = None
    uplinks_per_t0: Count | None = None
    t0s_per_pod: Count | None = None
    oversubscription: Ratio = Fraction(1)
    """Downlink to uplink bandwidth of a T0."""


class Pfc(Part):
    """Priority flow control of the data class: senders are stopped, nothing is dropped for want of room."""

    buffer: Amount | None = None
    """Buffer of a switch, bytes; 25.8 us of its capacity: 165.2 MB at 51.2 Tb/s (Broadcom Tomahawk 5)."""
    alpha: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """A port's share: so many times what is free (Zhu et al., SIGCOMM 2015: ECN acts first)."""
    xoff: Amount | None = None
    """Static threshold beside that, bytes."""
    xon_offset: Annotated[StrictInt, Field(ge=0, le=1 << 53)] | None = None
    """XON so many bytes below the threshold; two full packets (Zhu et al.)."""
    headroom: Annotated[StrictInt, Field(ge=0, le=1 << 53)] | None = None
    """Set aside for each port, bytes; what its cable and the longest packets need."""


class Switch(Part):
    """Queues of a switch port. What is left open is as the preset has it."""

    preset: Literal["mrc", "rocev2", "rocev2-lossy", "adaptive"] | None = None
    """What the transport is meant for, or one of these.

    ``mrc``: trimming at 1 (last hop 1.5), ECN from 0.2 to 0.8 but not on the last hop, control up to 1 and
    first (spec: congestion, "Switch settings"). ``rocev2``: PFC, marking from 400 KB to 1,600 KB with at most
    0.2 at 100 Gb/s, scaled with the rate, on every hop (spec: baselines). ``rocev2-lossy``: drops beyond
    6,400 KB instead of PFC. ``adaptive``: PFC, no ECN.
    """
    overflow: Literal["trim", "drop"] | None = None
    """What becomes of data that would have to wait behind more than ``trim``."""
    trim: Share | None = None
    trim_last_hop: Share | None = None
    control: Share | None = None
    """Longest control queue; what is beyond is dropped."""
    control_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The control queue's share of the port under weighted scheduling; without it control goes first."""
    ecn: bool | None = None
    """Whether switches mark at all."""
    ecn_min: Annotated[float, Field(ge=0, le=1024)] | None = None
    """ECN marking begins here (at dequeue)."""
    ecn_max: Annotated[float, Field(gt=0, le=1024)] | None = None
    """Everything is marked from here on; equal to ``ecn_min`` for a step."""
    ecn_min_bytes: Amount | None = None
    """Kmin in bytes, instead of ``ecn_min``."""
    ecn_max_bytes: Amount | None = None
    """Kmax in bytes, instead of ``ecn_max``."""
    ecn_probability: Probability | None = None
    """Probability just below ``ecn_max``: Pmax."""
    ecn_last_hop: bool | None = None
    """Mark towards hosts too. Off for MRC: there ECN would report incast, which no other path can help."""
    pfc: bool | Pfc | None = None
    """PFC, with its defaults or others; ``false`` turns the preset's off."""
    exact: bool = False
    """Real queues instead of departures computed on arrival: about twice as slow. PFC and
    ``control_share`` have them anyway."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for low, high in (("ecn_min", "ecn_max"), ("ecn_min_bytes", "ecn_max_bytes")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and most < least:
                raise ValueError(f"{high}: {most:g} is below {low}, {least:g}")
        for end in ("ecn_min", "ecn_max"):
            if getattr(self, end) is not None and getattr(self, f"{end}_bytes") is not None:
                raise ValueError(f"{end}_bytes stands instead of {end}, not beside it")
        return self


class Network(Part):
    """How fast, how long and how clever the parts of the fabric are."""

    port_rate: Rate = 100_000_000_000
    """Every port, bit/s; 100G is a port of the reference fabric."""
    cable_ns: tuple[Nanos, Nanos, Nanos, Nanos] = (500.0, 500.0, 500.0, 500.0)
    """Propagation delay of the cables of each layer, from host to T0 on; 500 ns are 100 m."""
    switch_latency_ns: Nanos = 500.0
    nic_latency_ns: Nanos = 500.0
    encapsulation: Literal["srv6", "udp"] | None = None
    """Headers counted on every cable: with or without the outer IPv6 header. MRC has it, others have not."""
    routing: Literal["source", "ecmp", "adaptive"] | None = None
    """Entropy values are paths (MRC) or hashed (RoCEv2, UET); or the least loaded uplink is taken."""
    detection_us: Micros | None = None
    """From a link's failure, or return, to its own switches knowing; without it routes are static.

    Carrier loss takes about 1,000, BFD 300,000, a hold timer 9 to 180 seconds.
    """
    convergence_us: Micros = 1_000_000.0
    """From there to all switches routing accordingly (BGP): 0.1 s to tens of seconds."""
    mtu: Annotated[StrictInt, Field(ge=256, le=8192)] = 4096
    """Payload bytes per data packet."""
    switch: Switch = Switch()
