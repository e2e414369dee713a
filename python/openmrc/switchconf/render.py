"""Writes the configuration of every switch of a fabric, a directory for each.

The same specification always gives the same bytes: nothing depends on time, host or hash order. The directory
also gets a copy of the specification with all ``auto`` fields filled in, so that it can be verified alone.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import yaml

from openmrc.errors import ArgumentError
from openmrc.fabric.spec import Platform, Specification
from openmrc.fabric.topology import Fabric, SwitchId
from openmrc.files import new_directory, read_bytes, write_bytes, write_text
from openmrc.switchconf import evidence
from openmrc.switchconf.devices import port_config_path
from openmrc.switchconf.facts import CONTROL, DATA, PLAIN, TRIMMED, Facts, SwitchFacts
from openmrc.switchconf.interfaces import Interfaces

SPECIFICATION = "fabric.yaml"
PLATFORM = "PLATFORM"
PORT_CONFIG = "port_config.ini"

FILES: dict[Platform, tuple[tuple[str, str], ...]] = {
    "linux": (
        ("ip.batch", "ip.batch.j2"),
        ("sysctl.conf", "sysctl.conf.j2"),
        ("qos.sh", "qos.sh.j2"),
        ("setup.sh", "setup.sh.j2"),
    ),
    "frr": (
        ("frr.conf", "frr.conf.j2"),
        ("daemons", "daemons.j2"),
        ("sysctl.conf", "sysctl.conf.j2"),
        ("qos.sh", "qos.sh.j2"),
        ("setup.sh", "frr-setup.sh.j2"),
    ),
    "sonic": (("config_db.json", "config_db.json.j2"),),
    "eos": (("startup-config", "startup-config.j2"),),
    "cumulus": (("nvue.cmds", "nvue.cmds.j2"),),
}
"""File and template, per platform."""

COMMON: dict[Platform, tuple[tuple[str, str], ...]] = {"sonic": (("load.sh", "load.sh.j2"),)}
"""The same for files that are once for all switches."""

EXECUTABLE = ("setup.sh", "qos.sh", "load.sh")

_environment = jinja2.Environment(
    loader=jinja2.PackageLoader("openmrc.switchconf"),
    autoescape=False,  # configuration, not HTML
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)
_environment.filters["json"] = json.dumps
_environment.globals.update(PLAIN=PLAIN, DATA=DATA, TRIMMED=TRIMMED, CONTROL=CONTROL)


def _cages(facts: SwitchFacts) -> list[str]:
    """The names of the cages in use on Cumulus."""
    return [f"swp{index}" for index in sorted({port.cage for port in facts.ports})]


_environment.globals.update(cages=_cages)


def render_switch(facts: SwitchFacts, platform: Platform) -> Iterator[tuple[str, str]]:
    """The files of one switch: name and text."""
    for name, template in FILES[platform]:
        yield name, _environment.get_template(template).render(sw=facts, qos=facts.qos)


def render_common(fabric: Fabric, platform: Platform) -> Iterator[tuple[str, str]]:
    """The files that all switches share: name and text."""
    hwsku = Interfaces(fabric, platform).hardware.hwsku
    for name, template in COMMON.get(platform, ()):
        yield name, _environment.get_template(template).render(fabric=fabric.spec.name, hwsku=hwsku)


def render(
    fabric: Fabric,
    platform: Platform,
    out: Path | str,
    *,
    progress: Callable[[int, int], Any] | None = None,
) -> int:
    """Writes the configuration of every switch.

    Args:
        fabric: The fabric.
        platform: The system of the switches.
        out: A directory that does not exist yet or is empty; switch ``p3/t0-17`` goes to ``out/p3/t0-17/``.
        progress: Called with the number of switches written and of all switches.

    Returns:
        The number of switches.

    Raises:
        ArgumentError: if the fabric cannot be addressed, or the directory is not empty.
        OSError: if a file cannot be written.
    """
    if platform not in FILES:
        raise ArgumentError(f"platform: {platform} is not one of {', '.join(FILES)}")
    facts = Facts(fabric, platform)
    with new_directory(Path(out)) as draft:
        return _fill(draft, fabric, platform, facts, progress)


def _fill(
    out: Path,
    fabric: Fabric,
    platform: Platform,
    facts: Facts,
    progress: Callable[[int, int], Any] | None,
) -> int:
    common = [
        (SPECIFICATION, resolved(fabric)),
        (PLATFORM, f"{platform}\n"),
        (evidence.FILE, evidence.report(fabric, platform)),
    ]
    _write(out, common)
    if (table := port_config_path(fabric.spec)) is not None:
        write_bytes(out / PORT_CONFIG, read_bytes(table), sync=False)
    _write(out, render_common(fabric, platform))
    for count, switch in enumerate(fabric.switches(), start=1):
        directory = switch_directory(out, switch)
        directory.mkdir(parents=True)
        _write(directory, render_switch(facts.of(switch), platform))
        if progress is not None:
            progress(count, fabric.switch_count)
    return fabric.switch_count


def _write(directory: Path, files: Iterable[tuple[str, str]]) -> None:
    for name, text in files:
        path = directory / name
        write_text(path, text, sync=False)
        if name in EXECUTABLE:
            path.chmod(0o755)


def switch_directory(out: Path, switch: SwitchId) -> Path:
    """The directory of a switch's files."""
    return out / f"p{switch.plane}" / f"t{switch.tier}-{switch.index}"


def resolved(fabric: Fabric) -> str:
    """The specification as YAML, without ``auto`` and the catalogue, as far as they decide the fabric.

    A port table is expected beside it, as :data:`PORT_CONFIG`.
    """
    spec: Specification = fabric.spec
    part = fabric.size.switch
    switch: dict[str, Any] = {"radix": fabric.radix}
    if cages := part.cages if part else spec.switch.cages:
        switch["cages"] = cages
    for name in ("device", "hwsku", "asic"):
        if (given := getattr(spec.switch, name)) is not None:
            switch[name] = given
    if spec.switch.port_config is not None:
        switch["port_config"] = PORT_CONFIG
    value: dict[str, Any] = {
        "name": spec.name,
        "hosts": spec.hosts,
        "nic": {"rate": _rate(spec.nic.rate)},
        "planes": fabric.planes,
        "switch": switch,
        "tiers": fabric.tiers,
        "oversubscription": [f"{r.numerator}:{r.denominator}" for r in spec.oversubscription],
    }
    for field in ("hosts_per_t0", "uplinks_per_t0", "t0s_per_pod", "parallel_links"):
        if getattr(spec, field) is not None:
            value[field] = getattr(spec, field)
    for field in ("cables", "addressing", "qos"):
        value[field] = getattr(spec, field).model_dump()
    value["mtu"] = spec.mtu
    header = f"# {spec.name}: the specification of the configurations in this directory.\n"
    return header + yaml.safe_dump(value, sort_keys=False)


def _rate(rate: int) -> str:
    return f"{rate // 10**9}G" if rate % 10**9 == 0 else f"{rate // 10**6}M"
