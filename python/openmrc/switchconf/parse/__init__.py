"""Parses rendered configurations from their text alone; nothing here uses the renderer."""

from collections.abc import Callable

from openmrc.fabric.spec import Platform
from openmrc.switchconf.parse import cumulus, eos, frr, linux, sonic
from openmrc.switchconf.parse.model import Complaint, Files, Parsed, Route, Where

PARSERS: dict[Platform, Callable[[Files], Parsed]] = {
    "linux": linux.parse,
    "frr": frr.parse,
    "sonic": sonic.parse,
    "eos": eos.parse,
    "cumulus": cumulus.parse,
}

__all__ = ["PARSERS", "Complaint", "Files", "Parsed", "Route", "Where"]
