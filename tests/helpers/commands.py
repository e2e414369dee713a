"""The command ``openmrc`` as processes, for tests."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

from openmrc.cli import _options

OPENMRC = [sys.executable, "-c", "import sys; from openmrc.cli import main; sys.exit(main())"]
PATIENCE = 60


def run(*arguments, timeout=PATIENCE, **options):
    """Runs a command to its end."""
    return subprocess.run(
        [*OPENMRC, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, **options
    )


def one_line_error(result):
    """The error of a command that failed, which has to be one line."""
    assert result.stderr.startswith("error: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@cache
def known_options():
    """The options of every command, by its name."""
    return {
        name: {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
        | {"-h", "--help"}
        for name, command in _options.commands()
    }


def unknown_words(words):
    """What openmrc does not have of a command's words: the command, or options of it."""
    if words[0].startswith("-"):
        return []
    name = next((name for n in (3, 2, 1) if (name := " ".join(words[:n])) in known_options()), None)
    if name is None:
        return [" ".join(words[:2])]
    own = words[: words.index("--")] if "--" in words else words
    options = [word.partition("=")[0].replace("_", "-") for word in own if re.match(r"--?[a-zA-Z]", word)]
    return [f"{name} {option}" for option in options if option not in known_options()[name]]


class Command:
    """A running command; its output is read line by line."""

    def __init__(self, *arguments, **options):
        # The tests may run where Ctrl-C is ignored, and children inherit that.
        def handle_interrupts():
            signal.signal(signal.SIGINT, signal.default_int_handler)

        self.process = subprocess.Popen(
            [*OPENMRC, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=handle_interrupts,
            **options,
        )
        self.errors = []
        self._reader = threading.Thread(target=self._read_errors)
        self._reader.start()

    def _read_errors(self):
        self.errors.extend(self.process.stderr)

    def line(self):
        """The next line of output."""
        return self.process.stdout.readline()

    def event(self):
        """The next line of output, which is JSON."""
        return json.loads(self.line())

    def events_until(self, kind):
        """Events up to the first one of a kind."""
        seen = []
        while not seen or seen[-1]["kind"] != kind:
            seen.append(self.event())
        return seen

    def works(self, seconds):
        """Waits until it has computed for some more seconds, of one core, however busy the machine is."""
        begin = self._computed()
        while self._computed() < begin + seconds:
            assert self.process.poll() is None, self.error_text
            time.sleep(0.01)

    def _computed(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def interrupt(self):
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def kill(self):
        """SIGKILL: no chance to clean up."""
        self.process.kill()

    def wait(self):
        """Exit code."""
        code = self.process.wait(timeout=PATIENCE)
        self._reader.join(PATIENCE)
        return code

    @property
    def error_text(self):
        """Standard error; complete after :meth:`wait`."""
        return "".join(self.errors)


@contextlib.contextmanager
def command(*arguments, **options):
    """A command that is killed at the end of the block."""
    it = Command(*arguments, **options)
    try:
        yield it
    finally:
        it.process.kill()
        it.wait()
        it.process.stdout.close()
        it.process.stderr.close()
