"""What a run is given: topology, network, transport, traffic, faults, as checked data.

Bytes are payload bytes; times end in their unit; thresholds of switches are shares of a plane's
bandwidth-delay product, port rate x base RTT, where the base RTT follows from cables and switches.
"""

from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, StrictInt, model_validator

from openmrc.fabric import yamlfile
from openmrc.fabric.units import Rate, Ratio
from openmrc.sim import flowfile

Host = Annotated[StrictInt, Field(ge=0)]
Count = Annotated[StrictInt, Field(ge=1)]
Bytes = Annotated[StrictInt, Field(ge=1, le=1 << 31)]
"""Length of a message; 2^31 is the longest there is."""
Micros = Annotated[float, Field(ge=0, le=1e9)]
Duration = Annotated[float, Field(gt=0, le=1e9)]
Nanos = Annotated[float, Field(ge=0, le=4e6)]
Probability = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=64)]
Seed = Annotated[StrictInt, Field(ge=0, lt=1 << 64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Topology(_Strict):
    """The smallest fabric for these numbers (spec: fabric); counts left open are computed."""

    hosts: Count
    planes: Annotated[StrictInt, Field(ge=1, le=16)] = 1
    tiers: Annotated[StrictInt, Field(ge=1, le=4)] = 2
    radix: Count
    """Ports of a switch."""
    hosts_per_t0: Count | None = None
    uplinks_per_t0: Count | None = None
    t0s_per_pod: Count | None = None
    oversubscription: Ratio = Fraction(1)
    """Downlink to uplink bandwidth of a T0."""


class Pfc(_Strict):
    """Priority flow control of the data class: senders are stopped, nothing is dropped for want of room."""

    buffer: Count | None = None
    """Buffer of a switch, bytes; 25.8 us of its capacity: 165.2 MB at 51.2 Tb/s (Broadcom Tomahawk 5)."""
    alpha: Annotated[float, Field(gt=0, le=1024)] = 1.0
    """A port's share: so many times what is free (Zhu et al., SIGCOMM 2015: ECN acts first)."""
    xoff: Count | None = None
    """Static threshold beside that, bytes."""
    xon_offset: Annotated[StrictInt, Field(ge=0)] | None = None
    """XON so many bytes below the threshold; two full packets (Zhu et al.)."""
    headroom: Annotated[StrictInt, Field(ge=0)] | None = None
    """Set aside for each port, bytes; what its cable and the longest packets need."""


class Switch(_Strict):
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
    ecn_min_bytes: Count | None = None
    """Kmin in bytes, instead of ``ecn_min``."""
    ecn_max_bytes: Count | None = None
    """Kmax in bytes, instead of ``ecn_max``."""
    ecn_probability: Probability | None = None
    """Probability just below ``ecn_max``: Pmax."""
    ecn_last_hop: bool | None = None
    """Mark towards hosts too. Off for MRC: there ECN would report incast, which no other path can help."""
    pfc: bool | Pfc | None = None
    """PFC, with its defaults or others; ``false`` turns the preset's off."""
    exact: bool = False
    """Real queues instead of departures computed on arrival: about twice as slow. PFC has them anyway."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for low, high in (("ecn_min", "ecn_max"), ("ecn_min_bytes", "ecn_max_bytes")):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and most < least:
                raise ValueError(f"{high}: {most:g} is below {low}, {least:g}")
        return self


class Network(_Strict):
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


class Mrc(_Strict):
    """The transport: MRC with the specification's defaults."""

    kind: Literal["mrc"] = "mrc"
    ev_active: Annotated[StrictInt, Field(ge=1, le=256)] = 128
    ev_backup: Annotated[StrictInt, Field(ge=0, le=256)] = 128
    mpr: Annotated[StrictInt, Field(ge=1, le=255)] = 8
    """In-flight window, units of 128 PSNs."""
    fixed_window: Count | None = None
    """A congestion window that never changes, bytes, instead of NSCC."""
    destination_control: bool = True
    """Receivers press senders that overrun their ports (spec: congestion); not behind weighted queues."""


class Dcqcn(_Strict):
    """Rate control of RoCEv2, as published (Zhu et al., SIGCOMM 2015; spec: baselines)."""

    g: Annotated[float, Field(gt=0, le=1)] = 1 / 256
    alpha_timer_us: Duration = 55.0
    rate_timer_us: Duration = 55.0
    """Tuned; 300 as first published."""
    byte_counter: Count = 10_000_000
    fast_recovery: Annotated[StrictInt, Field(ge=0)] = 5
    """F."""
    additive_bps: Annotated[float, Field(gt=0)] | None = None
    """5 Mb/s for every 10 Gb/s of a port's rate."""
    hyper_bps: Annotated[float, Field(gt=0)] | None = None
    """Ten times that."""
    least_bps: Annotated[float, Field(gt=0)] = 10e6
    cnp_interval_us: Duration = 50.0
    """A receiver sends a congestion notification at most this often for each queue pair."""


class Rocev2(_Strict):
    """The transport: RoCEv2 reliable connections, by default over PFC (spec: baselines)."""

    kind: Literal["rocev2"] = "rocev2"
    qps: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    """Queue pairs that share each message; each has one path, and one plane, in turn."""
    recovery: Literal["go-back-n", "selective-repeat"] = "go-back-n"
    dcqcn: bool | Dcqcn = True
    """Rate control with the published best settings, or others; ``false``: everybody sends at line rate."""
    timeout_us: Duration = 1048.576
    """Retransmission timeout: 4.096 us x 2^8."""
    retry_count: Annotated[StrictInt, Field(ge=0, le=255)] = 7
    """Timeouts in a row before a connection ends; 7 as in ib_qp_attr, 255 for ever."""
    window: Annotated[StrictInt, Field(ge=1, le=1 << 20)] = 4096
    """Packets in flight at most."""
    ack_every: Annotated[StrictInt, Field(ge=1, le=1 << 16)] = 4
    """An ACK for every so many packets, and for the last of a message."""


class Uet(_Strict):
    """The transport: Ultra Ethernet in RUD mode (spec: baselines).

    Sprays over entropy values that switches hash; NSCC, trimming, selective retransmission; knows nothing of
    broken paths.
    """

    kind: Literal["uet"] = "uet"
    load_balancing: Literal["oblivious", "reps", "skip"] = "reps"
    """At random; those whose packets arrived unmarked again (REPS, Bonato et al. 2024); or each in turn."""
    evs: Annotated[StrictInt, Field(ge=1, le=256)] = 256
    """Entropy values of a queue pair, all planes together."""
    mpr: Annotated[StrictInt, Field(ge=1, le=255)] = 8
    """In-flight window, units of 128 PSNs."""


class Adaptive(_Strict):
    """The transport: switches spray, NICs place out of order, over PFC (spec: baselines).

    The rate is Swift's (Kumar et al., SIGCOMM 2020), in place of RTT-based control that is not published.
    """

    kind: Literal["adaptive"] = "adaptive"
    mpr: Annotated[StrictInt, Field(ge=1, le=255)] = 16
    """In-flight window, units of 128 PSNs."""
    target_us: Duration | None = None
    """Round-trip time aimed at: 1.75 base RTTs, where NSCC aims."""
    beta: Annotated[float, Field(gt=0, le=1)] = 0.8
    max_decrease: Annotated[float, Field(gt=0, lt=1)] = 0.5
    increase: Annotated[float, Field(gt=0)] | None = None
    """Packets a round trip; 1 at 100 Gb/s and 12 us, scaled with the bandwidth-delay product."""


class _Pattern(_Strict):
    start_us: Micros = 0.0


class Permutation(_Pattern):
    """Every host sends to one other and receives from one other."""

    kind: Literal["permutation"] = "permutation"
    bytes: Bytes
    seed: Seed = 1


class Incast(_Pattern):
    """Many hosts send to one."""

    kind: Literal["incast"] = "incast"
    senders: list[Host]
    receiver: Host
    bytes: Bytes


class AllToAll(_Pattern):
    """Everybody sends to everybody else, all at once."""

    kind: Literal["all-to-all"] = "all-to-all"
    ranks: list[Host] | None = None
    """The hosts that take part; all of them without it."""
    bytes: Bytes


class RandomTraffic(_Pattern):
    """Messages between random hosts, a Poisson process."""

    kind: Literal["random"] = "random"
    load: Annotated[float, Field(gt=0, le=2)]
    """Mean load on each host, as a share of its rate, headers not counted."""
    sizes: list[tuple[Bytes, Probability]]
    """Points of the cumulative distribution of message length: (bytes, share of messages at most as long)."""
    duration_us: Duration
    seed: Seed = 1

    @model_validator(mode="after")
    def _is_distribution(self) -> Self:
        shares = [share for _, share in self.sizes]
        lengths = [length for length, _ in self.sizes]
        if not shares or shares[-1] != 1 or shares != sorted(shares) or lengths != sorted(lengths):
            raise ValueError("sizes: both columns have to grow, the last share is 1")
        return self


class Flows(_Pattern):
    """Messages one by one."""

    kind: Literal["flows"] = "flows"
    flows: list[tuple[Host, Host, Bytes, Micros]] = []
    """(source, destination, bytes, start in microseconds)"""
    file: str | None = None
    """A CSV file of more, with the columns ``src,dst,bytes,start_us``; relative to the scenario's own
    file."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.flows and self.file is None:
            raise ValueError("flows: there are none, and no file")
        return self


class Collective(_Pattern):
    """A collective operation: each rank sends when it has received what it needs."""

    kind: Literal["collective"] = "collective"
    operation: Literal[
        "ring-all-reduce",
        "recursive-doubling-all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "pipeline",
    ]
    ranks: list[Host] | None = None
    """Hosts in rank order; all of them without it."""
    bytes: Count
    """The data of one rank; with all-to-all, of one pair; with pipeline, of one microbatch."""
    microbatches: Count = 8


class Training(_Pattern):
    """Training steps: phases of computation and the collectives between them, for a parallel layout.

    Ranks are numbered pipeline stage, data replica, tensor shard, the last fastest. A step is the pipeline's
    one-forward-one-backward schedule over its microbatches, then the all-reduce of gradients over the data
    replicas. Zero bytes leave an operation out. Step times are the result (``Results.steps``).
    """

    kind: Literal["training"] = "training"
    data: Count = 1
    """Data replicas."""
    tensor: Count = 1
    """Shards of each layer."""
    pipeline: Count = 1
    """Pipeline stages."""
    expert: Count = 1
    """Data replicas that share a set of experts; divides ``data``."""
    ranks: list[Host] | None = None
    """Hosts in rank order; the first so many of all without it."""
    microbatches: Annotated[StrictInt, Field(ge=1, le=1 << 16)] = 4
    steps: Annotated[StrictInt, Field(ge=1, le=1 << 20)] = 4
    forward_us: Micros = 100.0
    """Computation of one microbatch in one stage."""
    backward_us: Micros = 200.0
    tensor_bytes: Annotated[StrictInt, Field(ge=0)] = 0
    """All-reduced over the tensor group after the computation of each microbatch, forwards and backwards."""
    activation_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 31)] = 1 << 20
    """Sent by each rank to the next stage for each microbatch, and back."""
    expert_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 31)] = 0
    """Sent by each rank to each other of its expert group, and back, for each microbatch and direction."""
    gradient_bytes: Annotated[StrictInt, Field(ge=0)] = 1 << 24
    """All-reduced over the data replicas at the end of a step, by each rank."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.data % self.expert:
            raise ValueError(f"expert: {self.expert} does not divide data, {self.data}")
        return self

    @property
    def size(self) -> int:
        """Ranks that take part."""
        return self.data * self.tensor * self.pipeline


class Capture(_Strict):
    """Packets of chosen links, as bytes."""

    links: Annotated[list[str], Field(min_length=1)]
    """Listened to in both directions, where the cable ends."""
    packets: Count = 1_000_000
    """The capture ends after so many."""
    snaplen: Annotated[StrictInt, Field(ge=64, le=1 << 16)] = 256
    """Bytes kept of each packet; 65536 keeps whole packets."""


class Record(_Strict):
    """What is written down on the way; it costs time only where it is asked for."""

    series: bool = False
    """Time series: goodput, queues, load of links, counters."""
    interval_us: Duration | None = None
    """Between two samples; without it about a thousand samples, whatever the length of the run."""
    links: list[str] | Literal["all"] = []
    """Links whose load and queues are kept one by one in the time series."""
    events: bool = False
    """A log: faults, what routing made of them, paths condemned and back, queue pairs that failed."""
    ports: bool = False
    """Marks, trims and losses by link."""
    evs: bool = False
    """Packets by connection and entropy value."""
    capture: Capture | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is written down."""
        return self.series or self.events or self.ports or self.evs or self.capture is not None

    @classmethod
    def everything(cls, interval_us: float | None = None) -> Self:
        """All but packets: what a report shows."""
        return cls(series=True, interval_us=interval_us, links="all", events=True, ports=True, evs=True)


class _Fault(_Strict):
    targets: Annotated[list[str], Field(min_length=1)]
    """Links (``p3/t0-17:up5--p3/t1-5``, ``h12:p3--p3/t0-0:down12``), NIC ports (``h12:p3``), switches
    (``p3/t1-5``); or all ``links``, ``host-links``, ``fabric-links``, ``switches``."""
    at_us: Micros = 0.0


class _Lasting(_Fault):
    until_us: Micros | None = None
    """When it is repaired; never without it."""


class Down(_Lasting):
    """Nothing gets through. At 0 it is broken from the start."""

    kind: Literal["down"] = "down"


class Loss(_Lasting):
    """Packets are lost at random."""

    kind: Literal["loss"] = "loss"
    probability: Probability


class BitErrors(_Lasting):
    """Bits are damaged at random; a damaged packet is dropped."""

    kind: Literal["bit-errors"] = "bit-errors"
    probability: Probability


class Slow(_Lasting):
    """A link at a share of its rate."""

    kind: Literal["slow"] = "slow"
    share: Annotated[float, Field(gt=0, le=1)]


class Flap(_Fault):
    """Down and up again, and again."""

    kind: Literal["flap"] = "flap"
    down_us: Duration
    up_us: Duration
    times: Count = 1


class Reboot(_Fault):
    """Switches that are gone for a while."""

    kind: Literal["reboot"] = "reboot"
    down_us: Duration


class NicPort(_Lasting):
    """Ports of hosts (``h12:p3``) without a carrier."""

    kind: Literal["nic-port"] = "nic-port"


class Transceiver(_Fault):
    """Several ports of one switch that share a transceiver go down and up again together."""

    kind: Literal["transceiver"] = "transceiver"
    targets: Annotated[list[str], Field(min_length=1, max_length=1)]
    """The switch."""
    ports: Annotated[list[Host], Field(min_length=1)]
    """Which of its ports, downlinks counted before uplinks."""
    down_us: Duration
    up_us: Duration = 1.0
    times: Count = 1


class Broken(_Fault):
    """A share of the targets, chosen at random, is down and stays so: at 0, broken from the start."""

    kind: Literal["broken"] = "broken"
    share: Annotated[float, Field(gt=0, le=1)]
    seed: Seed = 1


class RandomFailures(_Lasting):
    """Each target fails and is repaired at random times, exponentially distributed."""

    kind: Literal["random"] = "random"
    effect: Literal["down", "loss", "bit-errors", "slow"] = "down"
    amount: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of loss or bit errors, or share of the rate that is left."""
    mtbf_us: Duration
    mttr_us: Duration
    seed: Seed = 1


Transport = Annotated[Mrc | Rocev2 | Uet | Adaptive, Field(discriminator="kind")]
Traffic = Annotated[
    Permutation | Incast | AllToAll | RandomTraffic | Flows | Collective | Training,
    Field(discriminator="kind"),
]
Fault = Annotated[
    Down | Loss | BitErrors | Slow | Flap | Reboot | NicPort | Transceiver | Broken | RandomFailures,
    Field(discriminator="kind"),
]

_MEANT_FOR = {
    "mrc": ("source", "srv6", "mrc"),
    "uet": ("ecmp", "udp", "mrc"),
    "rocev2": ("ecmp", "udp", "rocev2"),
    "adaptive": ("adaptive", "udp", "adaptive"),
}
"""Routing, encapsulation and switch settings of each transport, where the network leaves them open."""


class Scenario(_Strict):
    """A run."""

    topology: Topology
    network: Network = Network()
    transport: Transport = Mrc()
    traffic: Annotated[list[Traffic], Field(min_length=1)]
    """Patterns that run beside each other."""
    faults: list[Fault] = []
    limit_us: Duration = 10_000_000.0
    """Virtual time at which the run ends at the latest; ten seconds."""
    seed: Seed = 1
    """Of everything left to chance in the network and in queue pairs; patterns have their own."""
    record: Record = Record()
    """What is written down on the way."""
    _source: yamlfile.Source | None = PrivateAttr(None)

    def core_arguments(self) -> tuple[Any, ...]:
        """What :class:`openmrc._core.Simulation` is made of."""
        topology = self.topology.model_dump()
        ratio = self.topology.oversubscription
        topology["oversubscription"] = (ratio.numerator, ratio.denominator)
        return (
            topology,
            self._network_arguments(),
            self.transport.model_dump(),
            [self._pattern_arguments(pattern) for pattern in self.traffic],
            [_fault_arguments(fault) for fault in self.faults],
            self.limit_us,
            self.seed,
            _record_arguments(self.record),
        )

    def _network_arguments(self) -> dict[str, Any]:
        network = self.network.model_dump()
        routing, encapsulation, preset = _MEANT_FOR[self.transport.kind]
        network["routing"] = network["routing"] or routing
        network["encapsulation"] = network["encapsulation"] or encapsulation
        network["switch"]["preset"] = network["switch"]["preset"] or preset
        pfc = network["switch"]["pfc"]
        network["switch"]["lossless"] = pfc if isinstance(pfc, bool) else True if pfc else None
        network["switch"]["pfc"] = pfc if isinstance(pfc, dict) else Pfc().model_dump()
        return network

    def _pattern_arguments(self, pattern: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = pattern.model_dump()
        if isinstance(pattern, Flows):
            arguments["flows"] = self.flows_of(pattern)
        return arguments

    def flows_of(self, pattern: Flows) -> list[tuple[int, int, int, float]]:
        """The flows of a pattern, those of its file included.

        Raises:
            FormatError: if the file is no list of flows, naming file and line.
            OSError: if it cannot be read.
        """
        if pattern.file is None:
            return list(pattern.flows)
        beside = self._source.path.parent if self._source else Path()
        return [*pattern.flows, *flowfile.read(beside / pattern.file)]

    def place(self, *location: int | str) -> str:
        """Where a field stands, for messages: ``file:line: field``, or just the field."""
        field = ".".join(str(part) for part in location)
        return f"{self._source.at(location)}: {field}" if self._source else field


def _record_arguments(record: Record) -> dict[str, Any]:
    arguments = record.model_dump(include={"series", "interval_us", "events", "ports", "evs"})
    arguments["links"] = None if record.links == "all" else record.links
    arguments["capture"] = record.capture.links if record.capture else []
    arguments["capture_packets"] = record.capture.packets if record.capture else 0
    return arguments


def _fault_arguments(fault: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = fault.model_dump()
    arguments.setdefault("until_us", None)
    named = ("probability", "share", "amount")
    arguments["value"] = next((arguments[name] for name in named if name in arguments), 0.0)
    return arguments


def load(path: Path | str) -> Scenario:
    """Reads a scenario from a YAML file.

    Raises:
        FormatError: if it is no scenario, naming file, line and field.
        OSError: if it cannot be read.
    """
    scenario, source = yamlfile.read_with_source(Path(path), Scenario)
    scenario._source = source
    return scenario
