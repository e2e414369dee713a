"""``openmrc dissector``: MRC for Wireshark and tshark."""

import shutil
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common
from openmrc.files import write_bytes


def dissector(
    install: Annotated[
        bool,
        typer.Option("--install", help="Install it into this user's Wireshark plugins."),
    ] = False,
) -> None:
    """Show MRC packets in Wireshark and tshark, field by field; their own dissector stops at the BTH.

    Without --install the path of the file is printed, for one run: tshark -X lua_script:PATH.
    """
    source = Path(__file__).parent.parent / "wire" / "wireshark" / "mrc.lua"
    if not install:
        print(source)
        return
    directory = _plugins()
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / source.name
    write_bytes(target, source.read_bytes())
    _common.console(stderr=True).print(f"wrote {target}")


def _plugins() -> Path:
    """Where Wireshark looks for this user's Lua plugins: tshark knows; else the place of its manual."""
    tshark = shutil.which("tshark")
    if tshark is not None:
        done = subprocess.run([tshark, "-G", "folders"], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            name, _, place = line.partition(":")
            if name == "Personal Lua Plugins" and place.strip():
                return Path(place.strip())
    return Path.home() / ".local" / "lib" / "wireshark" / "plugins"
