"""What each line of a rendered configuration rests on: a test that loaded it, a schema, or documentation.

Written beside the configurations, and shown in docs/switches.md. No line is without an entry.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, RootModel

from openmrc.fabric import yamlfile
from openmrc.fabric.spec import Platform
from openmrc.fabric.topology import Fabric, SwitchId
from openmrc.switchconf.interfaces import Interfaces

FILE = "EVIDENCE.txt"

Proof = Literal["loaded", "schema", "documented", "gap"]

MEANING: dict[Proof, str] = {
    "loaded": "the system has loaded it in a test, and its effect was seen",
    "schema": "valid under the vendor's own schema; no switch has loaded it",
    "documented": "in the vendor's public documentation; no switch has loaded it",
    "gap": "the command is not public; nothing is written",
}


class _Group(BaseModel):
    model_config = ConfigDict(extra="forbid")

    proof: Proof
    source: str
    lines: list[str]


class _Known(RootModel[dict[Platform, list[_Group]]]):
    pass


class Form(NamedTuple):
    """A form of line."""

    text: str
    """``<words>`` stand for any text."""
    proof: Proof
    source: str

    def matches(self, line: str) -> bool:
        """Whether a line has this form."""
        return _pattern(self.text).fullmatch(line) is not None


@cache
def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"<[^>]*>", text)
    return re.compile(".+".join(map(re.escape, parts)))


@cache
def _known() -> _Known:
    return yamlfile.read(Path(__file__).with_name("evidence.yaml"), _Known)


def forms(platform: Platform) -> list[Form]:
    """The forms of all lines of a platform."""
    groups = _known().root[platform]
    return [Form(line, group.proof, group.source) for group in groups for line in group.lines]


def form_of(platform: Platform, line: str) -> Form | None:
    """The form of a line; ``None`` if there is none."""
    return next((form for form in forms(platform) if form.matches(line)), None)


def statements(text: str, platform: Platform) -> Iterator[str]:
    """The lines of a file that say something; of a ``config_db.json`` its tables and fields."""
    if platform == "sonic" and text.startswith("{"):
        yield from _fields(json.loads(text))
        return
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("! GAP") or (stripped and not stripped.startswith(("#", "!"))):
            yield stripped


def _fields(tables: dict[str, dict[str, dict[str, str]]]) -> Iterator[str]:
    for table, entries in tables.items():
        if table == "INTERFACE" or table.endswith("_TC_MAP") or table.startswith("TC_TO_"):
            yield table
            continue
        for name in dict.fromkeys(name for fields in entries.values() for name in fields):
            yield f"{table}.{name}"


def notes(fabric: Fabric, platform: Platform) -> list[str]:
    """What a user must know before loading the configurations of this fabric."""
    found = []
    hardware = Interfaces(fabric, platform).hardware
    usids = max(len(fabric.table(SwitchId(0, tier, 0)).own) for tier in range(fabric.tiers))
    if platform == "frr" and usids > 1:
        found.append(f"a switch has up to {usids} uN SIDs: FRR 10.5 or later, older ones install only one")
    if platform == "sonic":
        found.append("SONiC 202511 or later: 202505 has no sr0, on which FRR installs uN SIDs")
        if hardware.rows is None:
            found.append(
                "assumed: SONiC's port names, counted in steps of lanes from Ethernet0; "
                "name the switch (switch.hwsku or switch.port_config)"
            )
        if hardware.asic is None:
            found.append(
                "assumed: size and queue of trimmed packets, and thresholds in bytes, which NVIDIA's buffer "
                "model refuses; name the switch or its chip (switch.asic)"
            )
        elif hardware.asic.shared_pool is not None:
            found.append(
                "not exact: thresholds of queues are shares of the free buffer, 1/256 of some 100 MB at "
                "least; where that is more than the plan says, packets are trimmed later"
            )
        elif hardware.asic.trim_queue == 9:
            found.append("assumed: trimmed packets leave by queue 9; before 202511 it is queue 7")
        if usids > 1:
            found.append(
                f"a switch has up to {usids} MY_SIDS: early builds of 202511 failed with several, "
                "so take a later one"
            )
    if platform in ("eos", "cumulus") and hardware.device is None:
        found.append("assumed: cages of eight lanes; name the switch (switch.device)")
    if platform == "cumulus" and hardware.asic is not None and hardware.asic.name == "spectrum5":
        found.append(
            "the user guide of Cumulus Linux 5.14 has SRv6 on Spectrum-4 only; Spectrum-5 is in later ones"
        )
    if platform == "eos":
        if usids > 1:
            found.append(
                f"not documented: several locators; a switch has up to {usids}, Arista's text shows one; "
                "with `parallel_links: 1` one is enough"
            )
        found.append("gap: packet trimming, whose command line is not public")
    return found


LOADING: dict[Platform, tuple[str, ...]] = {
    "linux": ("Run setup.sh as root after every boot. It may be run again. Nothing is left after a reboot.",),
    "frr": (
        "Run setup.sh as root after every boot, before FRR starts. Copy frr.conf and daemons to /etc/frr and",
        "restart FRR. To go back, restore both files and restart FRR.",
    ),
    "sonic": (
        "Copy load.sh and the switch's config_db.json to it and run, as root, `sh load.sh config_db.json",
        "[KEEP.json]`. The whole configuration is replaced, management address included; KEEP.json is loaded",
        "on top. To go back, see the head of load.sh.",
    ),
    "eos": (
        "Enter the lines in a session: `configure session openmrc`, the lines, `show session-config diffs`,",
        "`commit timer 00:10:00`. Without `configure session openmrc commit` within that time the switch",
        "goes back. Then `write`. As the whole startup-config the file leaves no management and no users.",
    ),
    "cumulus": (
        "Run `nv config patch nvue.cmds`, `nv config diff` and `nv config apply --confirm 10m`. Without",
        "`nv config apply --confirm-yes` within that time the switch goes back. Management stays as it is.",
    ),
}
"""How to load the files of a platform, and how to go back."""


def report(fabric: Fabric, platform: Platform) -> str:
    """The text of :data:`FILE`."""
    given = forms(platform)
    lines = [f"{fabric.spec.name}, {platform}: what each line of these configurations rests on.", ""]
    if given_notes := notes(fabric, platform):
        lines += [*(f"NOTE: {note}" for note in given_notes), ""]
    lines += ["To load:", *LOADING[platform], ""]
    for proof, meaning in MEANING.items():
        if any(form.proof == proof for form in given):
            lines.append(f"{proof:12}{meaning}")
    source = None
    for form in given:
        if form.source != source:
            source = form.source
            lines += ["", f"{source}:"]
        lines.append(f"{form.proof:12}{form.text}")
    return "\n".join(lines) + "\n"


def table() -> str:
    """The forms of all platforms in Markdown, for docs/switches.md."""
    lines = ["| platform | line | rests on | source |", "|---|---|---|---|"]
    for platform, groups in _known().root.items():
        for group in groups:
            text = "<br>".join(f"`{line}`" for line in group.lines).replace("|", "\\|")
            lines.append(f"| {platform} | {text} | {group.proof} | {group.source} |")
    return "\n".join(lines) + "\n"
