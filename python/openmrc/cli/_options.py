"""The table of all options in docs/cli.md, from the commands themselves.

``python -m openmrc.cli._options docs/cli.md`` (``make docs``) writes it; a test compares.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from openmrc import cli
from openmrc.files import write_text

BEGIN = "<!-- options: written by `make docs`, from the help of every command -->"
END = "<!-- options: end -->"
_SHARED = 3
"""From this many commands on, an option stands in the table of shared options."""


class Option(NamedTuple):
    """An option of a command."""

    command: str
    names: tuple[str, ...]
    value: str
    """What it takes; empty: nothing."""
    help: str

    @property
    def name(self) -> str:
        """Its long name."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def written(self) -> str:
        """As a user writes it."""
        names = ", ".join(f"`{name}`" for name in self.names)
        return f"{names} {self.value}".strip()


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that runs something, by its name."""
    for name, subcommand in cli.available().items():
        yield from _leaves(name, subcommand.load(name))


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if not below:
        yield name, command
        return
    for each in below.values():
        yield from _leaves(f"{name} {each.name}", each)


def options() -> list[Option]:
    """Every option of every command, without those that are only accepted for compatibility."""
    return [
        Option(
            name, (*param.opts, *param.secondary_opts), _value(param), " ".join((param.help or "").split())
        )
        for name, command in commands()
        for param in command.params
        if param.param_type_name == "option" and not param.hidden
    ]


def _value(param: Any) -> str:
    if param.metavar is not None:
        return str(param.metavar)
    choices = getattr(param.type_descriptor.annotation, "__args__", ())
    return "|".join(map(str, choices))


def markdown() -> str:
    """The tables."""
    every = options()
    by_name: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for option in every:
        by_name[option.written, option.value, option.help].append(option.command)
    shared = {key: users for key, users in by_name.items() if len(users) >= _SHARED}
    lines = ["### Options of several commands", ""]
    lines += _table(
        ("option", "meaning", "commands"),
        [(written, text, ", ".join(users)) for (written, _, text), users in shared.items()],
    )
    names: list[str] = list(dict.fromkeys(option.command for option in every))
    for name in names:
        rows = [
            (option.written, option.help)
            for option in every
            if option.command == name and (option.written, option.value, option.help) not in shared
        ]
        if rows:
            lines += ["", f"### openmrc {name}", "", *_table(("option", "meaning"), rows)]
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return [f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def renewed(page: str) -> str:
    """The page with the present tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{markdown()}\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_text(file, renewed(file.read_text(encoding="utf-8")))
