"""The options of a device, written by ``make docs`` from the list in crates/nic/src/config/options.rs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openmrc.wire import DscpMap, EntropyOrder, EvFormat


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What a device takes besides name and ports. ``None``: the core's default, which each field names."""

    ev_format: EvFormat = EvFormat.UDP
    """Where packets carry entropy values; the same at both ends of a connection. ``udp``, the default: the
    UDP source port. ``structured``: flow label and source port. Both use UDP sockets. ``srv6`` and
    ``srv6_srh``: the NIC builds the outer header itself, which needs CAP_NET_RAW; its paths come from EV
    profiles, each for one peer."""
    entropy_order: EntropyOrder | None = None
    """Which half of a 32-bit entropy is the UDP source port, in packets sent and in what is reflected;
    default ``flow_label_high``: the low half. In a peer's feedback both orders are understood
    (docs/spec/wire.md, "Where the entropy value goes")."""
    auto_bits: int | None = None
    """Bits of the values of the default EV profile in UDP mode: 16, the default, or over IPv6 also 32, for
    fabrics that hash the flow label."""
    evs_per_port: int | None = None
    """Entropy values per port in the default EV profile, half of them active and half in reserve; default 256
    divided by the number of ports, so that 128 are active (docs/spec/paths.md, "EV set")."""
    receive_buffer: int | None = None
    """Receive buffer of each port's socket, bytes; default 16 MiB: four windows of 8 x 128 packets of 4096
    bytes. Without CAP_NET_ADMIN the kernel may grant less (net.core.rmem_max)."""
    send_buffer: int | None = None
    """Send buffer of each path's socket, bytes; default 1 MiB: 16 runs of 64 KiB."""
    segmentation: bool | None = None
    """Several packets of one path share a system call (UDP GSO and GRO), where the kernel supports it;
    default yes."""
    ev_burst: int | None = None
    """Most consecutive packets on one path. There are fewer if they do not fit one system call, and at most 8
    if they are not ready at the same time. Default 15: the packets of 4096 bytes that fit. Hardware uses
    1."""
    udp_ports: Sequence[int] | None = None
    """UDP ports on which every port receives in addition to its own, at most 4; default none. MRC 1.0 prints
    4971 as its default, RoCEv2 has 4791. Answers go to the address that the peer gave."""
    io_uring: bool | None = None
    """Sockets that send have no descriptors: an io_uring has them, which takes one. Default: where the
    process may have fewer than 16,384 descriptors, as a packet that leaves alone costs 0.4 us more. If the
    kernel is older than 6.1 or forbids it, they have descriptors."""
    raise_descriptor_limit: bool | None = None
    """Raise the process's limit of open descriptors to its hard limit: each path has a socket. Default yes;
    in a program that uses the C library no, as the limit is the program's own choice there."""
    dscp: DscpMap | None = None
    """DSCP code points by class; default those of the specification (docs/spec/wire.md, "DSCP")."""
    network_trims: bool | None = None
    """Whether the switches of this network trim packets; default no: a host's own network does not."""
    base_rtt_us: float | None = None
    """Round-trip time of an idle path, microseconds: the initial value of loss detection and congestion
    control. Default 500: the delay is in the scheduling of the hosts' processors, not in the network."""
    link_rate_bps: int | None = None
    """Rate of all ports together, bits per second, from which the default NSCC profile is derived; default 25
    Gb/s."""
    fixed_window: int | None = None
    """Window of the default congestion control profile, bytes; 0: ``uet-1.0-nscc`` controls congestion.
    Default: that where the network trims, else 1 MiB. Sockets neither mark nor trim, and scheduling looks
    like queueing to NSCC. Drops shrink a fixed window; it grows back by a packet in a round trip."""
    ack_every_bytes: int | None = None
    """As responder, bytes received after which it sends a SACK, a small packet counting as 1024; default 128
    KiB, as a SACK costs a system call at each end."""
    ack_delay_us: float | None = None
    """As responder, longest time from a packet to a SACK, microseconds; default 50."""
    ep_ops: Literal["any", "peers", "off"] | Sequence[str] | None = None
    """Nodes whose endpoint requests (EV probes, port status updates) are answered: ``any``, the default;
    ``peers``, those of queue pairs; ``off``, none; or peers and these prefixes, such as 10.1.0.0/16. Nodes
    that are no peers get at most 10,000 answers per second each and 100,000 together."""
    port_mask_base: int | None = None
    """Bit of a port status mask that means the first port, 0 or 1: in updates sent, and in those of a peer of
    which neither the first nor the last port has been up. Default 0; readings of the specification differ
    (docs/spec/wire.md, "ERTH")."""
    spin_us: float | None = None
    """How long an idle engine polls before it sleeps, microseconds; default 0: the host's processors have
    other work."""
    cpu: int | None = None
    """Processor to which the engine's thread is bound; default any."""
    oor: Literal["nack", "silent"] | None = None
    """As responder, the answer to a PSN beyond the window: ``nack``, at most one per round trip, the default;
    or ``silent``. Readings of the specification differ (docs/spec/transport.md, "Responder")."""
    svc_time: bool | None = None
    """As responder, take the service time out of every reflected timestamp; default no, and then only the
    delayed SACK does (docs/spec/wire.md, "TSETH")."""
    wimm_nak_syndrome: int | None = None
    """As responder, the NAK for too many messages with immediate in flight: 0x65, the default, or 0x61.
    Readings of the specification differ (docs/spec/wire.md, "AETH")."""
    can_send: Literal["mtu", "any"] | None = None
    """As requestor, when the congestion window lets a packet go: ``mtu``, the default, while a full packet
    fits; ``any``, while there is any room. Readings differ (docs/spec/congestion.md, "Sending")."""
    dfc: bool | None = None
    """As requestor, destination flow control: the receiver's penalty shrinks the window; default yes. A queue
    pair has an attribute of this name for its own (docs/spec/congestion.md, "On a SACK")."""
    start_probe: bool | None = None
    """As requestor with NSCC, measure the RTT of the idle path by one probe in the control class when much is
    to be sent; default yes (docs/spec/congestion.md, "A good base_rtt at the start")."""
    rotation_turns: int | None = None
    """Full turns after which the order of the paths is drawn anew; 0: never. Default 16 (docs/spec/paths.md,
    "Choosing the EV of the next packet")."""
    seed: int | None = None
    """Seed of all randomness except memory keys; default from the operating system."""
    max_qps: int | None = None
    """Most queue pairs, 1 to 16384; default 16384."""
