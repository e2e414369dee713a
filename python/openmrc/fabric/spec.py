"""The specification of a fabric: the YAML file of ``openmrc plan``, ``path`` and ``config``.

Every default says where it comes from. Fields that are ``auto`` are computed, for the smallest fabric that
holds the hosts.
"""

import ipaddress
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, StrictInt, model_validator

from openmrc import _core
from openmrc.errors import FormatError
from openmrc.fabric import yamlfile
from openmrc.fabric.units import Length, Rate, Ratio, format_rate
from openmrc.model import Model

MAX_PLANES = _core.MAX_PLANES
MAX_TIERS = _core.MAX_TIERS
MAX_HOSTS = _core.MAX_HOSTS
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""Of a fabric, and so of a lab."""
_DSCP = _core.dscp_defaults()
_SWITCH = _core.SWITCH_DEFAULTS


def _prefix32(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not an IPv6 prefix; write it like 5f00::/32")
    try:
        network = ipaddress.IPv6Network(value)
    except ValueError:
        raise ValueError(f"{value!r} is not an IPv6 prefix; write it like 5f00::/32") from None
    if network.prefixlen != 32:
        raise ValueError(f"{value} is a /{network.prefixlen}; a /32 is needed")
    return str(network)


def _prefix_text(first_bits: int) -> str:
    """The /32 prefix whose 32 bits are these."""
    return str(ipaddress.IPv6Network((first_bits << 96, 32)))


def _auto(value: object) -> object:
    return None if value == "auto" else value


def _ratios(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


Prefix32 = Annotated[str, BeforeValidator(_prefix32)]
Count = Annotated[Annotated[StrictInt, Field(ge=1)] | None, BeforeValidator(_auto)]


class Nic(Model):
    """The hosts' network card."""

    rate: Rate
    """All ports together, bit/s. It is broken out into one port per plane."""


class SwitchChoice(Model):
    """The switch of the fabric: by capacity, by name in the catalogue, or by number of ports."""

    capacity: Rate | None = None
    """All ports together, bit/s."""
    model: str | None = None
    """Name in the catalogue; default the catalogue's first switch of the capacity."""
    radix: Annotated[StrictInt, Field(ge=1, le=_core.MAX_RADIX)] | None = None
    """Number of ports at the plane's port rate, for a switch that is in no catalogue (software switches in a
    lab)."""

    cages: Annotated[StrictInt, Field(ge=1, le=_core.MAX_RADIX)] | None = None
    """With radix: number of cages that the ports are broken out of, which decides port names; default those
    of the device, or one per port."""
    device: str | None = None
    """The switch by its product name, such as SN5640; for configurations, which refuse what it cannot do."""
    hwsku: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = None
    """Its hardware SKU under SONiC, which decides lanes, aliases and trimming."""
    port_config: Path | None = None
    """The ``port_config.ini`` of the SKU, relative to the specification's file; default the known one."""
    asic: str | None = None
    """Its chip, for SONiC's trimming; default that of the device."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [name for name in ("capacity", "model", "radix") if getattr(self, name) is not None]
        if not given:
            raise ValueError("one of capacity, model and radix is needed")
        if "radix" in given and len(given) > 1:
            raise ValueError(f"radix is enough: leave out {given[0]}")
        if self.cages is not None and self.radix is None:
            raise ValueError("cages: only with radix; a switch of the catalogue has its own")
        return self


class CableLengths(Model):
    """Typical length of the cables of each layer, metres."""

    host_t0: Length = 3.0
    """Within a rack."""
    t0_t1: Length = 30.0
    """Along a row."""
    t1_t2: Length = 100.0
    """Through a hall."""
    t2_t3: Length = 300.0
    """Between halls."""

    def of_layer(self, layer: int) -> float:
        """The length of a cable of layer 0 (host to T0) to 3 (T2 to T3), metres."""
        return (self.host_t0, self.t0_t1, self.t1_t2, self.t2_t3)[layer]


class Addressing(Model):
    """Prefixes (docs/spec/fabric.md, "SRv6 addressing plan")."""

    block: Prefix32 = _prefix_text(_core.DEFAULT_USID_BLOCK)
    """uSID block; default 5f00::/32, as RFC 9602 reserves 5f00::/16 for SRv6 SIDs."""
    links: Prefix32 = _prefix_text(_core.DEFAULT_LINK_PREFIX)
    """Each link gets a /127 (RFC 6164) of this prefix; default fd5f::/32, unique local addresses (RFC
    4193)."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.block == self.links:
            raise ValueError(f"links: {self.links} is the uSID block; link ends need another /32")
        return self


class Dscp(Model):
    """Code points of the packet classes (docs/spec/wire.md, "DSCP"); an operator chooses the values."""

    no_trim: Annotated[StrictInt, Field(ge=0, le=63)] = _DSCP["no_trim"]
    """Data that switches drop and do not trim."""
    data: Annotated[StrictInt, Field(ge=0, le=63)] = _DSCP["trimmable"]
    """Data that switches may trim."""
    retransmission: Annotated[StrictInt, Field(ge=0, le=63)] = _DSCP["trimmable_retx"]
    """The same, sent again."""
    trimmed: Annotated[StrictInt, Field(ge=0, le=63)] = _DSCP["trimmed"]
    """Data that a switch has trimmed."""
    trimmed_last_hop: Annotated[StrictInt, Field(ge=0, le=63)] = _DSCP["trimmed_last_hop"]
    """Data that the receiver's own T0 has trimmed."""
    control: Annotated[StrictInt, Field(ge=0, le=63)] = _DSCP["control"]
    """Acknowledgments, refusals, answers to probes, and port status updates."""

    @model_validator(mode="after")
    def _all_differ(self) -> Self:
        seen: dict[int, str] = {}
        for name, value in self:
            if value in seen:
                raise ValueError(f"{name}: code point {value} is already used for {seen[value]}")
            seen[value] = name
        return self


class Qos(Model):
    """What switches do with full queues (docs/spec/congestion.md, "Switch settings").

    Thresholds are shares of a plane's bandwidth-delay product, port rate x base_rtt.
    """

    dscp: Dscp = Dscp()
    """Code points of the packet classes."""
    base_rtt_us: Annotated[float, Field(gt=0, le=10_000)] = 12.0
    """Round-trip time of an MTU-size packet on the longest idle path; 12 us is NSCC's reference network."""
    ecn_min: Annotated[float, Field(gt=0, le=64)] = _SWITCH["ecn_min"]
    """ECN marking begins at this queue length ..."""
    ecn_max: Annotated[float, Field(gt=0, le=64)] = _SWITCH["ecn_max"]
    """... and is certain at this one. No marking on the last hop."""
    trim: Annotated[float, Field(gt=0, le=64)] = _SWITCH["trim"]
    """From this queue length on, packets are trimmed."""
    trim_last_hop: Annotated[float, Field(gt=0, le=64)] = _SWITCH["trim_last_hop"]
    """The same, towards a host."""
    trim_size: Annotated[StrictInt, Field(ge=256, le=1024, multiple_of=4)] = 256
    """Length of a trimmed packet, bytes: room for two IPv6 headers, UDP, BTH, METH, TSETH and RETH."""
    mtu: Annotated[StrictInt, Field(ge=1280, le=9216)] = 9216
    """Interface MTU, bytes; a path MTU of 4096 with all headers fits."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.ecn_max <= self.ecn_min:
            raise ValueError(f"ecn_max: {self.ecn_max:g} must be above ecn_min, {self.ecn_min:g}")
        return self


class Specification(Model):
    """A fabric as a user describes it."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)] = "fabric"
    """Used in host names and file headers."""
    hosts: Annotated[StrictInt, Field(ge=2, le=MAX_HOSTS)]
    """Hosts, each with one NIC that has a port in every plane. A server with eight NICs counts as eight
    hosts; how many GPUs are behind a NIC makes no difference to the network."""
    nic: Nic
    """NIC of every host."""
    planes: Annotated[Annotated[StrictInt, Field(ge=1, le=MAX_PLANES)] | None, BeforeValidator(_auto)]
    """Ports of a NIC, one per plane; ``auto`` takes the number that needs the fewest switches."""
    switch: SwitchChoice
    """Switch, the same in every tier: by ``capacity``, ``model`` of the catalogue, or ``radix``."""
    tiers: Annotated[Annotated[StrictInt, Field(ge=1, le=MAX_TIERS)] | None, BeforeValidator(_auto)] = None
    """Tiers of switches; ``auto`` takes the fewest that hold the hosts."""
    oversubscription: Annotated[list[Ratio], BeforeValidator(_ratios)] = Field(
        default=[Fraction(1)], min_length=1, max_length=3
    )
    """Ratio of downlink to uplink bandwidth of a T0; a list for T0, T1, T2. Default 1."""
    hosts_per_t0: Count = None
    """Downlinks of a T0 (one rack or several); ``auto``: hosts are spread evenly over as few T0s as
    possible."""
    uplinks_per_t0: Count = None
    """Uplinks of a T0; ``auto``: as the oversubscription requires."""
    t0s_per_pod: Count = None
    """T0s in a pod, with three tiers or more."""
    parallel_links: Count = None
    """Links from one T0 (with three tiers: pod) to one top switch; ``auto``: the number that saves top
    switches."""
    cables: CableLengths = CableLengths()
    """Lengths of the cables of each layer."""
    addressing: Addressing = Addressing()
    """Blocks of addresses: paths and ends of links."""
    qos: Qos = Qos()
    """Code points, and thresholds of ECN and trimming."""
    mtu: Annotated[StrictInt, Field(ge=256, le=8192)] = _core.QP_DEFAULTS["path_mtu"]
    """Path MTU: payload bytes of a full packet, for base latencies; default the NIC's."""
    catalogue: Path | None = None
    """Parts catalogue, relative to the specification's file; without it the package's example."""

    _path: Path | None = PrivateAttr(None)

    @property
    def path(self) -> Path | None:
        """The file it was read from."""
        return self._path

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.planes is not None and self.nic.rate % self.planes:
            rate = format_rate(self.nic.rate)
            raise ValueError(f"planes: a {rate} NIC does not break out into {self.planes} equal ports")
        if self.switch.radix is not None and self.planes is None:
            raise ValueError("planes: auto needs switch.capacity or switch.model, not switch.radix")
        if self.t0s_per_pod is not None and self.tiers in (1, 2):
            raise ValueError(f"t0s_per_pod: a fabric of {self.tiers} tiers has no pods")
        if self.tiers == 1 and (self.uplinks_per_t0 or self.parallel_links):
            raise ValueError("tiers: one tier has no uplinks")
        return self

    def prefix_bits(self) -> tuple[int, int]:
        """The first 32 bits of the uSID block and of the link prefix."""
        return _high(self.addressing.block), _high(self.addressing.links)


def _high(prefix: str) -> int:
    return int(ipaddress.IPv6Network(prefix)[0]) >> 96


def load(path: Path | str, *, hosts: int | None = None) -> Specification:
    """Reads a specification.

    Args:
        path: The YAML file.
        hosts: Number of hosts instead of the file's.

    Raises:
        FormatError: with file, line and field.
        OSError: if the file cannot be read.
    """
    path = Path(path)
    spec = yamlfile.read(path, Specification)
    if hosts is not None:
        if not 2 <= hosts <= MAX_HOSTS:
            raise FormatError(f"hosts: {hosts} is out of range: 2 to {MAX_HOSTS}")
        spec = spec.model_copy(update={"hosts": hosts})
    spec._path = path
    return spec


Platform = Literal["linux", "frr", "sonic", "eos", "cumulus"]
