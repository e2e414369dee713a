"""Common to the subcommands: printing results, progress, and errors as one line."""

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.errors import ArgumentError, Error
from openmrc.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + signal.SIGINT

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
"""The type of the parameter ``json`` of every subcommand that prints results."""


def out_option(metavar: str, help: str) -> Any:
    """The option ``--out``/``-o`` of every subcommand that writes its result to one place."""
    return typer.Option("--out", "-o", metavar=metavar, help=help)


DemoOutOption = Annotated[
    Path | None,
    out_option("DIR", "Directory for the picture and the numbers. Default: a new one named after the demo."),
]
"""The type of the parameter ``out`` of every demo; see :func:`openmrc.cli._demo.directory`."""


def schema_option(kind: str) -> Any:
    """The option ``--schema`` of a subcommand that reads a file of this kind: prints its JSON Schema."""

    def print_schema(wanted: bool) -> None:
        if wanted:
            from openmrc.reference import schema

            print_json(schema(kind))
            raise typer.Exit

    return typer.Option(
        "--schema",
        callback=print_schema,
        is_eager=True,
        help=f"Print the JSON Schema of a {kind} file and end.",
    )


def console(*, stderr: bool = False) -> "Console":
    """A rich console for results (standard output) or for progress and remarks (standard error).

    Colours and progress bars appear only on a terminal, and never with ``NO_COLOR``. A pipe gets plain text
    without line breaks, for grep.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    plain_width = None if stream.isatty() else 10_000
    # Texts come from files and names: `:a:` in an address such as 5f00:0:e:a:: would become an emoji, and a
    # directory `run[1]` would lose what looks like markup.
    return Console(
        stderr=stderr,
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=not stream.isatty(),
        # Jupyter sets FORCE_COLOR for what a cell starts, and progress bars would fill the notebook.
        force_terminal=None if stream.isatty() else False,
        width=plain_width,
    )


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1, prose: bool = False
) -> None:
    """Prints a table; on a terminal that is too narrow it is turned (:class:`openmrc.tables.Table`).

    Args:
        columns: Names of the columns.
        rows: The cells.
        left: Number of columns that are left-aligned names; the others are right-aligned numbers.
        prose: The last column has sentences, which may be folded.
    """
    from openmrc.tables import Table

    console().print(Table(columns, rows, left=left, prose=prose))


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Prints a result as JSON, indented on a terminal and on one line otherwise.

    Raises:
        ValueError: for a number that JSON does not have (NaN, infinity); a missing figure is ``None``.
    """
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent, allow_nan=False, default=_jsonable), flush=True)


def print_json_line(value: Mapping[str, Any]) -> None:
    """Prints one event of a stream as one line of JSON, at once.

    Raises:
        ValueError: as :func:`print_json`.
    """
    print(json.dumps(value, allow_nan=False, default=_jsonable), flush=True)


def _jsonable(value: object) -> object:
    # NumPy scalars and arrays, without importing NumPy.
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        return tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a result of type {type(value).__name__} has no JSON form")


def print_error(message: str) -> None:
    """Prints ``error: message`` as one line on standard error, on a terminal in red."""
    # The message may quote what came from elsewhere, such as the name of a file.
    line = "error: " + printable(" ".join(message.split()))
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        line = line.replace("error:", "\x1b[1;31merror:\x1b[0m", 1)
    print(line, file=sys.stderr, flush=True)


def run(command: Callable[[], object]) -> int:
    """Runs a command; returns the exit code. Expected failures have no traceback, bugs keep theirs."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the locale cannot show must not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            result = command()
        finally:
            # Here, because at interpreter exit a closed pipe cannot be handled any more.
            sys.stdout.flush()
    except KeyboardInterrupt:
        print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe. The interpreter must not flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except typer.Abort:
        print_error("aborted")
        return EXIT_FAILURE
    except typer.TyperException as error:
        return _usage_error(error)
    except OSError as error:
        print_error(_describe(error))
        return EXIT_FAILURE
    except Error as error:
        print_error(str(error))
        return EXIT_USAGE if isinstance(error, ArgumentError) else EXIT_FAILURE
    # With standalone_mode=False the code of a typer.Exit is the return value.
    code = result if isinstance(result, int) and not isinstance(result, bool) else 0
    if code == EXIT_INTERRUPTED:
        print_error("interrupted")
    return code


def _usage_error(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message().replace(": Value error, ", ": ")  # pydantic's words
    if type(error).__name__ == "NoArgsIsHelpError":
        # The message is the help text.
        if message:
            print(message, file=sys.stderr)
        return EXIT_USAGE
    if context is not None and error.exit_code == EXIT_USAGE:
        message = f"{message.rstrip('.')}; see `{context.command_path} --help`"
    print_error(message)
    return error.exit_code


def _describe(error: OSError) -> str:
    if error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, Error) and error.strerror:
        return error.strerror  # It names what failed; the number adds nothing.
    return str(error) or type(error).__name__
