"""Writes ``openmrc.verbs.device_options``, the fields of a device, from the core's list of options.

``python -m tests.helpers.device_options`` renews the module; ``make docs`` does it as well.
"""

import re
import textwrap
from pathlib import Path

from openmrc import _core
from openmrc.files import write_text

FILE = Path(__file__).parents[2] / "python/openmrc/verbs/device_options.py"
_WIDTH = 110

_HEAD = '''\
"""The options of a device, written by ``make docs`` from the list in crates/nic/src/config/options.rs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from openmrc.wire import DscpMap, EntropyOrder, EvFormat


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What a device takes besides name and ports. ``None``: the core's default, which each field names."""

'''

_OF_FORM = {
    "flag": "bool",
    "integer": "int",
    "number": "float",
    "integers": "Sequence[int]",
    "table": "dict[str, int]",
}
_CLASSES = {"ev_format": "EvFormat", "entropy_order": "EntropyOrder", "dscp": "DscpMap"}
_ALWAYS_SET = {"ev_format"}
"""Options that others read from the device."""


def module() -> str:
    """The text of the module."""
    return _HEAD + "".join(_field(name, option) for name, option in _core.DEVICE_OPTIONS.items())


def _field(name: str, option: dict[str, object]) -> str:
    annotation = _CLASSES.get(name) or _annotation(str(option["form"]), str(option["allowed"]))
    if name in _ALWAYS_SET:
        field = f"{name}: {annotation} = {annotation}.{str(option['default']).upper()}"
    else:
        field = f"{name}: {annotation} | None = None"
    text = re.sub(r"`([^`]+)`", r"``\1``", " ".join(str(option["doc"]).split()))
    doc = textwrap.fill(
        f'"""{text}"""',
        _WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
    return f"    {field}\n{doc}\n"


def _annotation(form: str, allowed: str) -> str:
    names = ", ".join(f'"{name}"' for name in re.split(r", | or ", allowed) if " " not in name)
    match form:
        case "name":
            return f"Literal[{names}]"
        case "name or texts":
            return f"Literal[{names}] | Sequence[str]"
        case _:
            return _OF_FORM[form]


if __name__ == "__main__":
    write_text(FILE, module())
