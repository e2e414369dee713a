"""The command line as a user sees it: output, error output and exit codes."""

import errno
import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

import openmrc
from openmrc import cli
from openmrc.cli import _common
from openmrc.errors import ArgumentError, FormatError
from tests.helpers.repository import ROOT

OPENMRC = [sys.executable, "-c", "import sys; from openmrc.cli import main; sys.exit(main())"]


def run(*arguments):
    return subprocess.run([*OPENMRC, *arguments], capture_output=True, text=True, timeout=60)


def raiser(error):
    def command():
        raise error

    return command


def test_help_lists_exactly_the_subcommands_that_are_installed():
    result = run("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    listed = re.findall(r"^│ ([a-z][a-z-]*) ", result.stdout, re.MULTILINE)
    assert listed == list(cli.available())


def test_help_groups_the_subcommands_by_what_one_does():
    groups = [group.split("─", 1) for group in run("--help").stdout.split("╭─ ")[2:]]
    shown = {title.strip(): re.findall(r"^│ ([a-z][\w-]*)", lines, re.MULTILINE) for title, lines in groups}
    for title, name in [
        ("Try it", "demo"),
        ("Move and measure data", "put"),
        ("Plan, configure and run a fabric", "plan"),
        ("Simulate", "simulate"),
        ("Collectives and training", "tune"),
        ("Operate a fabric", "controller"),
    ]:
        assert name in shown[title]
    assert max(map(len, shown.values())) < 10


def test_help_imports_no_subcommand():
    code = (
        "import sys; from openmrc import cli; cli.main(['--help']);"
        "print(sorted(m for m in sys.modules if m.startswith('openmrc.cli.')), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stderr.strip() == "['openmrc.cli._common']"


@pytest.mark.parametrize("name", cli.available())
def test_every_subcommand_explains_itself(name):
    result = run(name, "--help")
    assert result.returncode == 0, result.stderr
    assert f"openmrc {name}" in result.stdout


def test_a_subcommand_without_its_module_is_neither_listed_nor_found(monkeypatch, capsys):
    monkeypatch.setitem(cli.SUBCOMMANDS, "absent", cli.Subcommand("openmrc.cli.absent:absent", "Not here."))
    assert "absent" not in cli.available()
    assert cli.main(["absent"]) == 2
    assert "No such command" in capsys.readouterr().err


def test_version_is_that_of_the_compiled_core():
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, f"openmrc {openmrc.__version__}\n")


@pytest.mark.parametrize("arguments", [["no-such-command"], ["--no-such-option"]])
def test_wrong_usage_is_one_line_on_standard_error_and_exit_code_2(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "--help" in result.stderr
    assert arguments[0] in result.stderr


def test_a_misspelt_subcommand_is_corrected(monkeypatch, capsys):
    monkeypatch.setitem(cli.SUBCOMMANDS, "present", cli.Subcommand("openmrc.cli._common:run", "Here."))
    assert cli.main(["presnt"]) == 2
    assert "'present'" in capsys.readouterr().err


def test_without_arguments_it_prints_help_and_fails():
    result = run()
    assert result.returncode == 2
    assert "Usage: openmrc" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FormatError("two\n  lines"), "error: two lines\n"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "a.pcap"),
            "error: a.pcap: No such file or directory\n",
        ),
        (OSError(errno.EADDRINUSE, "Address already in use"), "error: [Errno 98] Address already in use\n"),
        (TimeoutError(), "error: TimeoutError\n"),
    ],
)
def test_an_expected_failure_is_one_line_and_exit_code_1(error, line, capsys):
    assert _common.run(raiser(error)) == 1
    assert capsys.readouterr().err == line


def test_a_value_that_can_never_work_is_wrong_usage_and_exit_code_2(capsys):
    assert _common.run(raiser(ArgumentError("port 17 does not exist; a device has 1 to 16"))) == 2
    assert capsys.readouterr().err == "error: port 17 does not exist; a device has 1 to 16\n"


def test_an_interrupt_is_exit_code_130(capsys):
    assert _common.run(raiser(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        _common.run(lambda: 1 // 0)


def test_sigint_during_a_subcommand_is_exit_code_130(tmp_path):
    code = (
        "import sys, time, types\n"
        "from openmrc import cli\n"
        "module = types.ModuleType('openmrc.cli.sleeper')\n"
        "def sleeper():\n    print('ready', flush=True); time.sleep(60)\n"
        "module.sleeper = sleeper\n"
        "module.__spec__ = __import__('importlib').machinery.ModuleSpec('openmrc.cli.sleeper', None)\n"
        "sys.modules['openmrc.cli.sleeper'] = module\n"
        "cli.SUBCOMMANDS['sleeper'] = cli.Subcommand('openmrc.cli.sleeper:sleeper', 'Sleeps.')\n"
        "sys.exit(cli.main(['sleeper']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, "error: interrupted\n")


def test_a_closed_pipe_is_no_traceback():
    code = (
        "from openmrc.cli import _common; import sys; sys.exit(_common.run(lambda: print('x\\n' * 100000)))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        error = process.stderr.read()
    assert (process.returncode, error) == (1, "")


def test_json_on_a_pipe_is_one_line(capsys):
    _common.print_json({"goodput_gbps": 12.5, "path": "a"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"goodput_gbps": 12.5, "path": "a"}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_refuses_what_json_cannot_carry(value):
    with pytest.raises(ValueError, match="JSON"):
        _common.print_json({"figure": value})


def on_a_terminal(code, columns, **environment):
    """Runs Python code with both outputs on a pseudo-terminal and returns what it wrote."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=child, stderr=child, env=environment)
    os.close(child)
    output = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:  # EIO: the other end is closed
            break
        if not piece:
            break
        output += piece
    os.close(parent)
    process.wait(timeout=60)
    return output.decode()


def without_styles(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


ERROR_ON_TERMINAL = "from openmrc.cli import _common; _common.print_error('no such plane')"


def test_errors_are_coloured_on_a_terminal_only(capsys):
    assert "\x1b[" in on_a_terminal(ERROR_ON_TERMINAL, 80, NO_COLOR="")
    assert "\x1b[" not in on_a_terminal(ERROR_ON_TERMINAL, 80, NO_COLOR="1")
    _common.print_error("no such plane")
    assert capsys.readouterr().err == "error: no such plane\n"


def test_a_cell_of_a_notebook_is_no_terminal():
    scenario = ROOT / "examples" / "scenarios" / "planes-fail.yaml"
    done = subprocess.run(
        [*OPENMRC, "simulate", scenario],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"},
        check=True,
    )
    assert "messages delivered" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_help_fits_a_narrow_terminal():
    output = without_styles(on_a_terminal("from openmrc.cli import main; main(['--help'])", 40))
    assert "Usage: openmrc" in output
    assert max(map(len, output.splitlines())) <= 40


def test_a_table_on_a_pipe_is_not_wrapped():
    code = "from openmrc.cli import _common; _common.console().print('word ' * 100)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert output.count("\n") == 1
