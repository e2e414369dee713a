"""The transport of the hosts, each with the parameters of its publication."""

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt

from openmrc.errors import FormatError
from openmrc.fabric import yamlfile
from openmrc.sim.scenario.part import OPEN, Part


class Receives(Part):
    """Receives of each connection: how soon its receiver is ready for the next message."""

    posted: StrictInt
    """Posted at the beginning."""
    repost_us: float = OPEN
    """A receive is posted again this long after a message has taken it. If none is posted at the beginning,
    one is posted this long after a message has come that waits for it."""
    wait_us: float | None = OPEN
    """How long a message waits that finds none, before its queue pair fails; as long as it takes if left
    open."""


class Mrc(Part):
    """MRC, with the specification's defaults."""

    kind: Literal["mrc"] = "mrc"
    ev_active: StrictInt = OPEN
    """Paths in rotation."""
    ev_backup: StrictInt = OPEN
    """Paths in reserve."""
    mpr: StrictInt = OPEN
    """In-flight window, units of 128 PSNs."""
    fixed_window: StrictInt | None = OPEN
    """A congestion window that never changes, bytes, instead of NSCC."""
    destination_control: bool = OPEN
    """Whether receivers slow down senders that overrun their ports (docs/spec/congestion.md)."""
    spacing: bool = OPEN
    """Whether a sender whose only packet is trimmed on the last hop waits longer before each next one."""
    prove_mtu: bool = OPEN
    """Whether a connection proves its path MTU before its first message, as NICs do: in a round trip, or for
    about a second if a plane does not answer. A plane that carries short packets only fails the
    connection."""
    linger: bool = OPEN
    """Whether queue pairs are destroyed as soon as their host has sent or received all, and answer their
    peers for a while, as NICs' do. Else a receiver's stays until its sender knows that all has arrived."""
    receives: Receives | None = OPEN
    """Every message needs a receive of its receiver; none does if left open."""
    path_selector: str | None = OPEN
    """A class of your own in place of EV states, as ``module.Class`` (:mod:`openmrc.sim.custom`): slower, and
    in one thread only."""
    congestion: str | None = OPEN
    """A class of your own in place of NSCC, in the same form."""


class Dcqcn(Part):
    """Rate control of RoCEv2, as published (Zhu et al., SIGCOMM 2015; docs/spec/baselines.md)."""

    g: float = OPEN
    """Weight of a congestion notification in the estimate."""
    alpha_timer_us: float = OPEN
    """The estimate decays after this time without a congestion notification."""
    rate_timer_us: float = OPEN
    """The rate rises after this time; 300 as first published, tuned since."""
    byte_counter: StrictInt = OPEN
    """The rate rises after this many bytes."""
    fast_recovery: StrictInt = OPEN
    """Steps of fast recovery: F."""
    additive_bps: float | None = OPEN
    """Additive increase; scaled with a port's rate if left open."""
    hyper_bps: float | None = OPEN
    """Hyper increase; a multiple of the additive increase if left open."""
    least_bps: float = OPEN
    """The rate never falls below this."""
    cnp_interval_us: float = OPEN
    """A receiver sends at most one congestion notification in this time for each queue pair."""


class Rocev2(Part):
    """RoCEv2 reliable connections, by default over PFC (docs/spec/baselines.md)."""

    kind: Literal["rocev2"] = "rocev2"
    qps: StrictInt = OPEN
    """Queue pairs that share each message; each has one path, and one plane, in turn."""
    recovery: Literal["go-back-n", "selective-repeat"] = OPEN
    """What is sent again after a loss: everything from the lost packet on, or what is missing."""
    dcqcn: bool | Dcqcn = OPEN
    """Rate control with the published best settings, or others; ``false``: everybody sends at line rate."""
    timeout_us: float = OPEN
    """Retransmission timeout."""
    retry_count: StrictInt = OPEN
    """Timeouts in a row before a connection ends; 255 for no end."""
    window: StrictInt = OPEN
    """Packets in flight at most."""
    ack_every: StrictInt = OPEN
    """An ACK for every n packets, and for the last of a message."""


class Uet(Part):
    """Ultra Ethernet in RUD mode (docs/spec/baselines.md).

    Sprays over entropy values that switches hash; NSCC, trimming, selective retransmission; knows nothing of
    broken paths.
    """

    kind: Literal["uet"] = "uet"
    load_balancing: Literal["oblivious", "reps", "skip"] = OPEN
    """At random; again those whose packets arrived unmarked (REPS, Bonato et al. 2024); or each in turn."""
    evs: StrictInt = OPEN
    """Entropy values of a queue pair, all planes together."""
    mpr: StrictInt = OPEN
    """In-flight window, units of 128 PSNs."""
    destination_control: bool = OPEN
    """Whether receivers slow down senders that overrun their ports (UET 1.0 section 3.6.13), as with MRC."""
    spacing: bool = OPEN
    """Whether a sender whose only packet is trimmed on the last hop waits longer before each next one,
    as with MRC."""
    path_selector: str | None = OPEN
    """A class of your own in place of ``load_balancing``, as ``module.Class`` (:mod:`openmrc.sim.custom`):
    slower, and in one thread only."""
    congestion: str | None = OPEN
    """A class of your own in place of NSCC, in the same form."""


class Adaptive(Part):
    """Switches spray, NICs place out of order, over PFC (docs/spec/baselines.md).

    The rate is Swift's (Kumar et al., SIGCOMM 2020), in place of RTT-based control that is not published.
    """

    kind: Literal["adaptive"] = "adaptive"
    mpr: StrictInt = OPEN
    """In-flight window, units of 128 PSNs."""
    target_us: float | None = OPEN
    """Round-trip time aimed at; a multiple of the base RTT if left open."""
    beta: float = OPEN
    """Gain of the decrease."""
    max_decrease: float = OPEN
    """Most of the window that is given up at once."""
    increase: float | None = OPEN
    """Packets a round trip; scaled with the bandwidth-delay product if left open."""


Transport = Annotated[Mrc | Rocev2 | Uet | Adaptive, Field(discriminator="kind")]


def fields_of(text: str) -> dict[str, Any]:
    """The fields of a transport that is written as a short text: ``mrc``, ``rocev2:qps=8``.

    Raises:
        ValueError: if an option is not of the form ``field=value``, or is given twice.
    """
    kind, *options = text.split(":")
    fields: dict[str, Any] = {"kind": kind}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ValueError(f"{text}: {option} is not of the form field=value")
        if name in fields:
            raise ValueError(f"{text}: {name} is given twice")
        try:
            fields[name] = yamlfile.value_of(value)
        except FormatError:
            raise ValueError(f"{text}: {name}: {value} is not a value") from None
    return fields
