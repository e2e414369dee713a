"""What the hosts speak, each with the parameters it is published with."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from openmrc.sim.scenario.fields import Amount, Duration, Part, Rate


class Mrc(Part):
    """The transport: MRC with the specification's defaults."""

    kind: Literal["mrc"] = "mrc"
    ev_active: Annotated[StrictInt, Field(ge=1, le=256)] = 128
    ev_backup: Annotated[StrictInt, Field(ge=0, le=256)] = 128
    mpr: Annotated[StrictInt, Field(ge=1, le=255)] = 8
    """In-flight window, units of 128 PSNs."""
    fixed_window: Amount | None = None
    """A congestion window that never changes, bytes, instead of NSCC."""
    destination_control: bool = True
    """Receivers press senders that overrun their ports (spec: congestion)."""


class Dcqcn(Part):
    """Rate control of RoCEv2, as published (Zhu et al., SIGCOMM 2015; spec: baselines)."""

    g: Annotated[float, Field(gt=0, le=1)] = 1 / 256
    alpha_timer_us: Duration = 55.0
    rate_timer_us: Duration = 55.0
    """Tuned; 300 as first published."""
    byte_counter: Amount = 10_000_000
    fast_recovery: Annotated[StrictInt, Field(ge=0, lt=1 << 32)] = 5
    """F."""
    additive_bps: Rate | None = None
    """5 Mb/s for every 10 Gb/s of a port's rate."""
    hyper_bps: Rate | None = None
    """Ten times that."""
    least_bps: Rate = 10e6
    cnp_interval_us: Duration = 50.0
    """A receiver sends a congestion notification at most this often for each queue pair."""


class Rocev2(Part):
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


class Uet(Part):
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


class Adaptive(Part):
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
    increase: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Packets a round trip; 1 at 100 Gb/s and 12 us, scaled with the bandwidth-delay product."""


Transport = Annotated[Mrc | Rocev2 | Uet | Adaptive, Field(discriminator="kind")]
