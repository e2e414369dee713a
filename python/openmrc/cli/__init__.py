"""The command ``openmrc``.

Each subcommand is one function in one file of this package. It is imported only when it runs: ``openmrc
--help`` reads only the table below. A new subcommand is a new file and a line here.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from openmrc.cli import _common


class Subcommand(NamedTuple):
    """The place of a subcommand, and its description in the list of commands."""

    target: str
    """``module:name`` of a function, or of a :class:`typer.Typer` with its own subcommands."""
    help: str

    @property
    def module(self) -> str:
        """The module of the subcommand; this installation may not have it."""
        return self.target.partition(":")[0]

    def load(self, name: str) -> Any:
        """Imports the module and makes the command."""
        module, _, attribute = self.target.partition(":")
        function = getattr(importlib.import_module(module), attribute)
        if isinstance(function, typer.Typer):
            command = typer.main.get_command(function)
        else:
            application = typer.Typer(add_completion=False, context_settings=_CONTEXT)
            application.command(name, help=_paragraphs(function.__doc__ or ""))(function)
            command = typer.main.get_command(application)
        command.name = name
        _tidy_help(command)
        _add_examples(name, command)
        return command


def _add_examples(name: str, command: Any) -> None:
    """Puts the examples at the end of the help of a command, or of each command below it."""
    # Not at the top: the list of commands does without it.
    from openmrc.cli import _examples

    command.epilog = _examples.epilog(name)
    for each in getattr(command, "commands", {}).values():
        _add_examples(f"{name} {each.name}", each)


def _paragraphs(text: str) -> str:
    """A docstring for any terminal width: joins the lines of a paragraph; keeps indented lines and lists."""
    blocks = inspect.cleandoc(text).split("\n\n")
    kept = re.compile(r"[ *|-]")
    return "\n\n".join(
        block if any(map(kept.match, block.splitlines())) else " ".join(block.split()) for block in blocks
    )


def _tidy_help(command: Any) -> None:
    """One form for the help of all commands.

    An option's value is named by its meaning (SIZE, N, FILE) and not by its type in Python, and its default
    stands at the end of its sentence.
    """
    for each in getattr(command, "commands", {}).values():
        each.help = _paragraphs(each.help or "")
        _tidy_help(each)
    for param in command.params:
        if param.show_default and param.default not in (None, False) and "efault" not in (param.help or ""):
            default = param.opts[0] if param.is_bool_flag else param.default
            param.help = f"{param.help} Default {default}."
        param.show_default = False
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
        elif param.is_bool_flag:
            param.metavar = ""
        elif param.metavar is None:
            kind = param.type_descriptor.annotation
            param.metavar = {int: "N", Path: "FILE", str: "TEXT"}.get(kind)
    help_option = command.get_help_option

    def without_type(ctx: Any) -> Any:
        option = help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option

    command.get_help_option = without_type


_CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    # perftest writes --post_list; everything else in the world writes --post-list.
    "token_normalize_func": lambda name: name.replace("_", "-"),
}

_GROUPS: dict[str, dict[str, Subcommand]] = {
    "Try it": {
        "demo": Subcommand(
            "openmrc.cli.demo:demo", "Send a file over eight planes of this machine while planes fail."
        ),
        "train-demo": Subcommand(
            "openmrc.cli.train_demo:train_demo", "Train a small model with PyTorch while the network fails."
        ),
        "example": Subcommand(
            "openmrc.cli.example:example", "Write a shipped scenario, fabric or grid to start from."
        ),
    },
    "Move and measure data": {
        "write-bw": Subcommand(
            "openmrc.cli.write_bw:write_bw", "Measure the goodput of RDMA writes, as ib_write_bw does."
        ),
        "write-lat": Subcommand(
            "openmrc.cli.write_lat:write_lat", "Measure the latency of RDMA writes, as ib_write_lat does."
        ),
        "put": Subcommand(
            "openmrc.cli.put:put", "Send files to an `openmrc serve`, over all planes at once."
        ),
        "serve": Subcommand("openmrc.cli.serve:serve", "Receive files that `openmrc put` sends."),
        "devices": Subcommand(
            "openmrc.cli.devices:devices", "Show what the open devices of this user's processes do."
        ),
        "run": Subcommand("openmrc.cli.run:run", "Run an unmodified verbs program, such as ib_write_bw."),
        "config-c": Subcommand(
            "openmrc.cli.config_c:config_c", "Show where the headers and libraries of the C interface are."
        ),
    },
    "Look at packets": {
        "decode": Subcommand(
            "openmrc.cli.decode:decode",
            "Show MRC packets of a capture, an interface or in hexadecimal, field by field.",
        ),
        "dissector": Subcommand(
            "openmrc.cli.dissector:dissector", "Show MRC packets in Wireshark and tshark."
        ),
    },
    "Plan, configure and run a fabric": {
        "plan": Subcommand(
            "openmrc.cli.plan:plan", "Plan a multi-plane fabric: switches, links, planes, addresses."
        ),
        "path": Subcommand(
            "openmrc.cli.path:path", "Show the path of an entropy value, and the entropy value of a path."
        ),
        "config": Subcommand("openmrc.cli.config:config", "Write the switch configurations of a fabric."),
        "verify": Subcommand(
            "openmrc.cli.verify:verify", "Check a fabric's configuration and cabling against its plan."
        ),
        "lab": Subcommand("openmrc.cli.lab:lab", "Run a fabric in network namespaces of this machine."),
    },
    "Operate a fabric": {
        "locate": Subcommand(
            "openmrc.cli.locate:locate", "Name the broken cable, from the devices of running processes."
        ),
        "controller": Subcommand(
            "openmrc.cli.controller:controller",
            "Run a fabric's controller: live map, faults, decisions, metrics, page.",
        ),
        "agent": Subcommand(
            "openmrc.cli.agent:agent", "Tell a controller what this host's processes see of the fabric."
        ),
        "fabric": Subcommand(
            "openmrc.cli.fabric:fabric", "Ask a fabric's controller, and tell it what to do."
        ),
        "validate": Subcommand(
            "openmrc.cli.validate:validate", "Say whether a job should start on some hosts."
        ),
        "replay": Subcommand(
            "openmrc.cli.replay:replay", "Simulate an incident: what a job would have seen of it."
        ),
    },
    "Simulate": {
        "simulate": Subcommand(
            "openmrc.cli.simulate:simulate", "Run a fabric in virtual time: workloads, faults, results."
        ),
        "compare": Subcommand(
            "openmrc.cli.compare:compare", "Run one simulated scenario with several transports, side by side."
        ),
        "sweep": Subcommand(
            "openmrc.cli.sweep:sweep", "Run a grid of simulated scenarios on all cores or a cluster."
        ),
        "workload": Subcommand(
            "openmrc.cli.workload:workload", "Generate, check and run what the ranks of a training job send."
        ),
        "job": Subcommand(
            "openmrc.cli.job:job", "Say what failures cost a training job over days, network by network."
        ),
        "reproduce": Subcommand(
            "openmrc.cli.reproduce:reproduce",
            "Simulate the published results of MRC and compare them with ours.",
        ),
    },
    "Collectives and training": {
        "bench-collective": Subcommand(
            "openmrc.cli.bench_collective:bench_collective",
            "Measure collective operations, as nccl-tests do.",
        ),
        "tune": Subcommand(
            "openmrc.cli.tune:tune", "Find the fastest algorithm for collective operations here."
        ),
    },
}
"""The subcommands by what one does with them, as `openmrc --help` lists them."""

SUBCOMMANDS = {name: each for group in _GROUPS.values() for name, each in group.items()}
_PANELS = {name: title for title, group in _GROUPS.items() for name in group}


def available() -> dict[str, Subcommand]:
    """The subcommands that this installation has, in the order of the table."""
    return {name: each for name, each in SUBCOMMANDS.items() if importlib.util.find_spec(each.module)}


class _LazyGroup(TyperGroup):
    """A group that lists its subcommands from the table and imports only the one that runs.

    Parameters are ``Any`` because typer has no public names for these classes.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # For help, completion and "did you mean": names and descriptions, without the modules.
        self.commands = {
            name: TyperCommand(name, help=each.help, rich_help_panel=_PANELS.get(name))
            for name, each in available().items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and name is not None and name in self.commands:
            command = SUBCOMMANDS[name].load(name)
        return name, command, rest


app = typer.Typer(
    cls=_LazyGroup,
    context_settings=_CONTEXT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from openmrc import __version__

        typer.echo(f"openmrc {__version__}")
        raise typer.Exit


@app.callback()
def openmrc(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """RDMA writes over every path of a multi-plane network: the MRC transport in software."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    0 is success, 1 a failure, 2 wrong usage (an option, argument or value that can never work), 130 an
    interrupt. All but 0 print the reason as one line on standard error.

    Args:
        arguments: The arguments after ``openmrc``; default ``sys.argv[1:]``.
    """
    command = typer.main.get_command(app)
    _tidy_help(command)
    return _common.run(
        lambda: command.main(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="openmrc",
            standalone_mode=False,
        )
    )


def script() -> int:
    """The program ``openmrc``: as :func:`main`; the devices that it opens are published to this user."""
    os.environ.setdefault("OPENMRC_OBSERVE", "1")
    return main()
