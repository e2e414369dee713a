"""Packages that only some uses need, and the command that installs them."""

import importlib
import re
from importlib import metadata
from typing import Any

from openmrc.errors import Error

_REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[([a-z,]+)\])?\s*([^;]*)(?:;(.*))?")


def import_optional(module: str, what: str, package: str) -> Any:
    """A module of a package that is installed only for some uses, ``what`` being the one at hand.

    Args:
        module: What to import.
        what: What needs it, for the message.
        package: The package that has it, or an extra of openmrc such as ``openmrc[sim]``.

    Raises:
        Error: if it is not installed; the message has the command that installs it.
    """
    try:
        # PyArrow has no type stubs, hence Any.
        return importlib.import_module(module)
    except ModuleNotFoundError:
        extra = re.fullmatch(r"openmrc\[(\w+)\]", package)
        name = module.partition(".")[0] if extra else package
        command = pip_install(extra[1]) if extra else f"pip install {package}"
        raise Error(f"{what} needs {name}: {command}") from None


def pip_install(extra: str) -> str:
    """The command that installs the packages of an extra of openmrc, such as ``sim``.

    It names the packages themselves, because openmrc may be a checkout or a wheel from a directory, where
    ``pip install openmrc[sim]`` would look for openmrc on an index.
    """
    return "pip install " + " ".join(f"'{package}'" for package in _packages(extra))


def _packages(extra: str) -> list[str]:
    """The requirements of an extra, those of the extras that it includes among them."""
    found: list[str] = []
    for requirement in metadata.requires("openmrc") or ():
        match = _REQUIREMENT.fullmatch(requirement.strip())
        if match is None or not re.search(rf"extra == ['\"]{extra}['\"]", match[4] or ""):
            continue
        name, inner, version = match[1], match[2], match[3].strip(" ()")
        more = [each for part in inner.split(",") for each in _packages(part)] if inner else []
        found += more if name == "openmrc" else [f"{name}{version}"]
    return list(dict.fromkeys(found))
