"""The switches whose ports are known by name, and the port tables of SONiC's hardware SKUs.

A fabric's specification may name the switch. Then impossible breakouts are refused, and SONiC's lanes,
aliases and trimming are those of the hardware. What is unknown stays out of a configuration.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from openmrc.errors import ArgumentError, FormatError
from openmrc.fabric import yamlfile
from openmrc.fabric.spec import Platform, Specification
from openmrc.fabric.topology import Fabric
from openmrc.fabric.units import Rate, format_rate
from openmrc.files import read_text

LANES = 8
"""Lanes of a cage (OSFP, QSFP-DD)."""

_FILE = Path(__file__).with_name("devices.yaml")
_COLUMNS = ("name", "lanes", "alias", "index", "speed", "fec")
_NUMBER = re.compile("[0-9]{1,7}")
_LANES = re.compile("[0-9]{1,4}(,[0-9]{1,4}){0,15}")
_PATTERNS = {
    # An interface of Linux has at most 15 letters.
    "name": (re.compile("Ethernet[A-Za-z0-9-]{1,7}"), "the name of a port, such as Ethernet0"),
    "alias": (re.compile("[A-Za-z0-9][A-Za-z0-9._:/(),-]{0,127}"), "the label of a port, such as etp1a"),
    "index": (re.compile("[0-9]{1,5}"), "a number"),
    "fec": (re.compile("rs|fc|none|auto"), "one of rs, fc, none and auto"),
}
"""What SONiC's models allow (sonic-port.yang), and labels without what other formats give a meaning."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str


class Asic(_Entry):
    """A switch chip."""

    trim_size: int | None = None
    """The only size of a trimmed packet, bytes; ``None``: as the specification says."""
    trim_queue: int | None = None
    """The only queue of trimmed packets; ``None``: any."""
    shared_pool: int | None = None
    """Size of the pool, bytes, of which SONiC's thresholds are shares; ``None``: they are bytes."""
    trim_queue_of_sku: dict[str, int] = {}
    """The queue instead on hardware SKUs whose name has this part."""


class Device(_Entry):
    """A switch."""

    platforms: list[Platform]
    """The systems that it runs."""
    asic: str
    cages: StrictInt
    breakouts: list[StrictInt]
    """Numbers of ports that every cage can have at the same time."""


class HwSku(_Entry):
    """A hardware SKU of SONiC with all cages broken out alike."""

    device: str
    ports: StrictInt
    """Per cage."""
    speed: Rate
    lanes: str
    alias: str


class _Known(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    asics: list[Asic]
    devices: list[Device]
    lanes: dict[str, Annotated[list[StrictInt], Field(min_length=1)]]
    hwskus: list[HwSku]

    def asic(self, name: str) -> Asic | None:
        return next((a for a in self.asics if a.name == name), None)

    def device(self, name: str) -> Device | None:
        return next((d for d in self.devices if d.name == name), None)

    def hwsku(self, name: str) -> HwSku | None:
        return next((h for h in self.hwskus if h.name == name), None)


@cache
def known() -> _Known:
    """The switches that this package knows."""
    return yamlfile.read(_FILE, _Known)


@dataclass(frozen=True)
class PortRow:
    """A port in SONiC's PORT table."""

    name: str
    lanes: str
    alias: str
    index: str
    speed: str
    """Mb/s"""
    fec: str


class Hardware(NamedTuple):
    """The switch of a fabric, as far as it is named."""

    device: Device | None
    asic: Asic | None
    hwsku: str | None
    rows: list[PortRow] | None
    """SONiC's ports of the plane's rate, in the order of the table; ``None``: not known."""


def with_switch(fabric: Fabric, *, device: str | None = None, hwsku: str | None = None) -> Fabric:
    """The fabric with its switch named.

    Args:
        fabric: The fabric.
        device: The product name instead of the specification's.
        hwsku: The hardware SKU of SONiC instead of the specification's, with its known port table.
    """
    choice = fabric.spec.switch
    if hwsku is not None:
        choice = choice.model_copy(update={"device": None, "port_config": None, "hwsku": hwsku})
    if device is not None:
        choice = choice.model_copy(update={"device": device})
    return Fabric(fabric.spec.model_copy(update={"switch": choice}), fabric.catalogue)


def breakout(fabric: Fabric) -> int:
    """Ports per cage: the smallest of 1, 2, 4, 8 that gives the radix."""
    part, choice = fabric.size.switch, fabric.spec.switch
    device = known().device(choice.device) if choice.device else None
    cages = part.cages if part is not None else choice.cages or (device.cages if device else fabric.radix)
    return next((b for b in (1, 2, 4, LANES) if cages * b >= fabric.radix), LANES)


def hardware(fabric: Fabric, platform: Platform) -> Hardware:
    """The named switch of a fabric.

    Raises:
        ArgumentError: if the switch does not run the system, or cannot have the ports of the fabric.
        FormatError: if the specification's port table is wrong.
    """
    if platform in ("linux", "frr"):
        return Hardware(None, None, None, None)
    device = _device(fabric.spec, platform)
    per_cage = breakout(fabric)
    if device is not None:
        _check_breakout(fabric, device, per_cage)
    elif per_cage == LANES and not (platform == "sonic" and fabric.spec.switch.port_config):
        raise ArgumentError(
            f"switch.device: {fabric.radix} ports of {format_rate(fabric.port_rate)} are {LANES} per cage, "
            f"which few switches have; name yours, here or with --device: {_names(platform, LANES)}"
        )
    asic = known().asic(device.asic) if device else None
    if platform != "sonic":
        return Hardware(device, asic, None, None)
    return _sonic(fabric, device, asic, per_cage)


def _device(spec: Specification, platform: Platform) -> Device | None:
    choice = spec.switch
    sku = known().hwsku(choice.hwsku) if choice.hwsku else None
    if choice.hwsku and sku is None and choice.port_config is None and platform == "sonic":
        names = ", ".join(h.name for h in known().hwskus)
        raise ArgumentError(
            f"switch.hwsku: the port table of {choice.hwsku} is not known (known: {names}); "
            "give it as switch.port_config, the port_config.ini of the switch"
        )
    if choice.device and sku and choice.device != sku.device:
        raise ArgumentError(f"switch.hwsku: {sku.name} is a {sku.device}, not a {choice.device}")
    name = choice.device or (sku.device if sku else None)
    if name is None:
        return None
    device = known().device(name)
    if device is None:
        names = ", ".join(d.name for d in known().devices)
        raise ArgumentError(f"switch.device: {name} is not known; known are {names}")
    if platform not in device.platforms:
        raise ArgumentError(
            f"switch.device: {name} runs {' and '.join(device.platforms)}, not {platform}; "
            f"{platform} runs on {_names(platform)}"
        )
    return device


def _check_breakout(fabric: Fabric, device: Device, per_cage: int) -> None:
    rate = format_rate(fabric.port_rate)
    if per_cage in device.breakouts and device.cages * per_cage >= _needed(fabric):
        return
    most = device.cages * max(device.breakouts)
    others = ", ".join(
        d.name for d in known().devices if per_cage in d.breakouts and d.cages * per_cage >= fabric.radix
    )
    raise ArgumentError(
        f"switch.device: {fabric.radix} ports of {rate} need {per_cage} per cage; {device.name} has "
        f"{device.cages} cages with {', '.join(map(str, device.breakouts))} ports, {most} at most"
        + (f"; possible on {others}" if others else "")
    )


def _names(platform: Platform, per_cage: int | None = None) -> str:
    return ", ".join(
        d.name
        for d in known().devices
        if platform in d.platforms and (per_cage is None or per_cage in d.breakouts)
    )


def _needed(fabric: Fabric) -> int:
    """Connected ports of the switch with most."""
    core = fabric.core
    return max(core.downlinks(tier) + core.uplinks(tier) for tier in range(fabric.tiers))


# --- SONiC --------------------------------------------------------------------------------------------------


def _sonic(fabric: Fabric, device: Device | None, asic: Asic | None, per_cage: int) -> Hardware:
    choice = fabric.spec.switch
    if choice.asic:
        asic = known().asic(choice.asic)
        if asic is None:
            names = ", ".join(a.name for a in known().asics)
            raise ArgumentError(f"switch.asic: {choice.asic} is not known; known are {names}")
    sku = known().hwsku(choice.hwsku) if choice.hwsku else None
    if choice.port_config is not None:
        path = port_config_path(fabric.spec)
        assert path is not None
        rows, name = read_port_config(path), choice.hwsku or str(choice.port_config)
    elif sku is None and device is None:
        return Hardware(None, asic, None, None)
    else:
        sku = sku or _sku_of(fabric, device, per_cage)
        rows, name = sku_rows(sku), sku.name
    asic = _asic_of(asic, sku.name if sku else choice.hwsku)
    speed = str(fabric.port_rate // 10**6)
    fitting = [row for row in rows if row.speed == speed]
    if len(fitting) < _needed(fabric):
        rate = format_rate(fabric.port_rate)
        field = "port_config" if choice.port_config is not None else "hwsku"
        raise ArgumentError(
            f"switch.{field}: {name} has {len(fitting)} ports of {rate}, "
            f"a switch of this fabric needs {_needed(fabric)}"
        )
    return Hardware(device, asic, sku.name if sku else choice.hwsku, fitting)


def _asic_of(asic: Asic | None, hwsku: str | None) -> Asic | None:
    """The chip as a hardware SKU sets it up."""
    if asic is None or hwsku is None:
        return asic
    queues = [queue for part, queue in asic.trim_queue_of_sku.items() if part in hwsku]
    return asic.model_copy(update={"trim_queue": queues[0]}) if queues else asic


def _sku_of(fabric: Fabric, device: Device | None, per_cage: int) -> HwSku:
    """The only SKU of a device with these ports."""
    assert device is not None
    skus = [h for h in known().hwskus if h.device == device.name]
    fitting = [h for h in skus if h.ports == per_cage and h.speed == fabric.port_rate]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(h.name for h in skus) or "none"
    rate = format_rate(fabric.port_rate)
    raise ArgumentError(
        f"switch.hwsku: no known SKU of {device.name} has {per_cage} ports of {rate} per cage "
        f"(known: {names}); give its table as switch.port_config"
    )


def sku_rows(sku: HwSku) -> list[PortRow]:
    """The port table of a known SKU."""
    width = LANES // sku.ports
    rows = []
    for cage, first in enumerate(known().lanes[sku.lanes]):
        for place in range(sku.ports):
            lanes = range(first + place * width, first + (place + 1) * width)
            letter = "abcdefgh"[place]
            alias = sku.alias.format(cage=cage + 1, lane=place * width + 1, letter=letter)
            if sku.ports == 1:
                alias = alias.removesuffix(letter)
            rows.append(
                PortRow(
                    f"Ethernet{cage * LANES + place * width}",
                    ",".join(map(str, lanes)),
                    alias,
                    str(cage + 1),
                    str(sku.speed // 10**6),
                    "rs",
                )
            )
    return rows


def port_config_path(spec: Specification) -> Path | None:
    """The specification's port table, relative to its own file."""
    given = spec.switch.port_config
    if given is None or spec.path is None:
        return given
    return spec.path.parent / given


def read_port_config(path: Path) -> list[PortRow]:
    """Reads a ``port_config.ini`` of SONiC.

    Raises:
        FormatError: with file and line.
        OSError: if the file cannot be read.
    """
    header: list[str] = []
    rows: list[PortRow] = []
    seen: dict[str, int] = {}
    names: dict[tuple[str, str], int] = {}
    for number, line in enumerate(read_text(path, errors="replace").splitlines(), start=1):
        words = line.split()
        if not words or line.startswith("#"):
            titles = line.lstrip("#").split()
            if "name" in titles and "lanes" in titles:
                header = titles
            continue
        columns = header or list(_COLUMNS)
        if len(words) > len(columns):
            raise FormatError(f"{path}:{number}: {len(words)} columns, the header has {len(columns)}")
        fields = dict(zip(columns, words, strict=False))
        name, lanes = fields.get("name", ""), fields.get("lanes", "")
        if not _LANES.fullmatch(lanes) or not _NUMBER.fullmatch(fields.get("speed", "")):
            raise FormatError(f"{path}:{number}: lanes and a speed in Mb/s expected: {line.strip()[:200]}")
        row = PortRow(
            name,
            lanes,
            fields.get("alias", name),
            fields.get("index", str(len(rows))),
            fields["speed"],
            fields.get("fec", "rs"),
        )
        for column, (pattern, right) in _PATTERNS.items():
            if not pattern.fullmatch(value := getattr(row, column)):
                raise FormatError(f"{path}:{number}: {column} {value[:100]!r} is not {right}")
            key = (column, value)
            if column in ("name", "alias") and names.setdefault(key, number) != number:
                raise FormatError(f"{path}:{number}: {column} {value} is already used in line {names[key]}")
        for lane in lanes.split(","):
            if seen.setdefault(lane, number) != number or lanes.split(",").count(lane) > 1:
                raise FormatError(f"{path}:{number}: lane {lane} is already used in line {seen[lane]}")
        rows.append(row)
    if not rows:
        raise FormatError(
            f"{path}: no ports; a port_config.ini has lines such as `Ethernet0 0,1 etp1a 1 200000`"
        )
    return rows
