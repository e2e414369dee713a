"""Manual pages of all commands, from the same texts as their help.

``python -m openmrc.cli._manual DIR`` (``make man``) writes them: openmrc.1, openmrc-plan.1, openmrc-lab-up.1.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from openmrc import __version__, cli
from openmrc.cli import _options
from openmrc.cli._examples import EXAMPLES, remark
from openmrc.files import write_text


def pages() -> Iterator[tuple[str, str]]:
    """The name of each file, and its text in the language of man(7)."""
    commands = dict(_options.commands())
    yield "openmrc.1", _overview(list(commands))
    for name, command in commands.items():
        yield f"{_title(name)}.1", _page(name, command)


def _title(name: str) -> str:
    """The name of a command's page: lab up is openmrc-lab-up."""
    return f"openmrc-{name.replace(' ', '-')}"


def _overview(names: Sequence[str]) -> str:
    lines = [*_head("openmrc", "MRC (Multipath Reliable Connection) in software")]
    lines += [".SH SYNOPSIS", ".B openmrc", ".I COMMAND", "[...]", ".SH COMMANDS"]
    for name, command in cli.available().items():
        below = [each for each in names if each.startswith(f"{name} ")]
        seen = below or [name]
        lines += [".TP", f".B {_text(name)}", _text(command.help)]
        lines += [f"See {', '.join(f'{_title(each)}(1)' for each in seen)}."]
    lines += [".SH EXIT STATUS"]
    for code, meaning in (
        ("0", "Success."),
        ("1", "A failure."),
        ("2", "Wrong usage."),
        ("130", "Interrupted."),
    ):
        lines += [".TP", f".B {code}", meaning]
    return "\n".join(lines) + "\n"


def _page(name: str, command: Any) -> str:
    title = _title(name)
    first, *rest = _blocks(command.help or "")
    lines = [*_head(title, first)]
    lines += [".SH SYNOPSIS", f".B openmrc {_text(name)}", "[OPTIONS]"]
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    lines += [f".I {_text(_name(param))}" for param in arguments]
    if rest:
        lines.append(".SH DESCRIPTION")
        for block in rest:
            lines += [".PP", *_paragraph(block)]
    if arguments:
        lines.append(".SH ARGUMENTS")
        for param in arguments:
            lines += [".TP", f".I {_text(_name(param))}", _text(" ".join((param.help or "").split()))]
    lines.append(".SH OPTIONS")
    for option in _options.options():
        if option.command == name:
            names = ", ".join(option.names)
            lines += [".TP", f".B {_text(names)}{_text(' ' + option.value if option.value else '')}"]
            lines.append(_text(option.help))
    lines += [".TP", ".B \\-h, \\-\\-help", "Show the help and exit."]
    lines += [".SH EXAMPLES", ".nf", *(_text(line) for line in EXAMPLES[name]), ".fi"]
    if found := remark(name):
        lines += [".PP", _text(found)]
    lines += [".SH SEE ALSO", "openmrc(1)"]
    return "\n".join(lines) + "\n"


def _head(title: str, what: str) -> list[str]:
    summary = " ".join(what.split()).rstrip(".")
    return [
        f'.TH "{title.upper()}" "1" "" "openmrc {__version__}" "openmrc"',
        ".SH NAME",
        f"{_text(title)} \\- {_text(summary)}",
    ]


def _name(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _blocks(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block.strip()] or [""]


def _paragraph(block: str) -> list[str]:
    if any(line.startswith((" ", "*", "|", "-")) for line in block.splitlines()):
        return [".nf", *(_text(line) for line in block.splitlines()), ".fi"]
    return [_text(" ".join(block.split()))]


def _text(text: str) -> str:
    """Plain text: no letter of it is a command of roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def write(directory: Path) -> int:
    """Writes all pages and returns their number."""
    directory.mkdir(parents=True, exist_ok=True)
    found = dict(pages())
    for name, text in found.items():
        write_text(directory / name, text, sync=False)
    return len(found)


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]))} manual pages in {sys.argv[1]}")
