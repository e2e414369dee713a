"""Plants one fault at a time into a Python package and runs the tests that reach it: `make mutants-python`.

A first run writes down which functions of the package each test calls. Each fault then has a process of its
own, forked from one that has loaded what is heavy but nothing of the package. A fault that no test notices
gets a test, or a place with its reason in tests/helpers/mutants_accepted.toml.
"""

import argparse
import collections
import compileall
import gc
import importlib
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.helpers.python_faults import Fault, accepted, faults_of
from tests.helpers.repository import ROOT

LOADED = ("hypothesis.strategies", "jinja2", "numpy", "pydantic", "yaml", "openmrc.sim")
"""What tests import and takes long to import."""
PATIENCE = (8, 6)
"""A test that takes so many times as long as without faults, and so many seconds, has noticed one."""
MEMORY = 8 << 30
"""Bytes of address space: a fault may ask for more and more."""
PYTEST = (
    "-x",
    "-q",
    "--assert=plain",
    "--tb=line",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
)


@dataclass(frozen=True)
class Test:
    """A test that passes without faults, the functions that it calls, and how long it takes, in seconds."""

    name: str
    reached: frozenset[tuple[str, str]]
    seconds: float


def name_of(item: pytest.Item) -> str:
    """The file of a test, and its name there: pytest's own name depends on what else is run."""
    return f"{item.path}::{item.nodeid.partition('::')[2]}"


class Quiet:
    """Examples of properties are the same ones for each fault, and few."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        with suppress(ImportError):
            from hypothesis import Phase, settings

            phases = [Phase.explicit, Phase.generate]
            settings.register_profile(
                "mutants", derandomize=True, database=None, deadline=None, max_examples=40, phases=phases
            )
            settings.load_profile("mutants")


class Recorder(Quiet):
    """Runs each test in processes of its own, and writes down what it calls of the files below `source`."""

    def __init__(self, source: Path, file: Path) -> None:
        self.below = str(source) + os.sep
        self.file = file
        self.codes: dict[int, CodeType] = {}

    def _call(self, frame: FrameType, event: str, argument: object) -> None:
        # Without a result only calls are followed: no lines, no returns.
        self.codes[id(frame.f_code)] = frame.f_code

    def _functions(self) -> list[tuple[str, str]]:
        """Files and functions, named as faults name them."""
        return [
            (
                code.co_filename.removeprefix(self.below),
                ".".join(part for part in code.co_qualname.split(".") if "<" not in part),
            )
            for code in list(self.codes.values())
            if code.co_filename.startswith(self.below)
        ]

    @contextmanager
    def _followed(self) -> Iterator[None]:
        threading.settrace(self._call)
        sys.settrace(self._call)
        yield
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Iterator[None]:
        # What runs at import is reached by every test.
        with self._followed():
            yield

    def _ran(self, item: pytest.Item, part: str, told: Callable[[], object]) -> None:
        """Runs a test in a process of its own, and writes down what is `told` of it then."""
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        try:
            reports = runtestprotocol(item, log=False, nextitem=None)
            if len(reports) == 3 and all(report.passed for report in reports):
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name_of(item), part, told()]) + "\n")
        finally:
            os._exit(0)

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        with self._followed():
            self._ran(item, "reached", lambda: self._functions())
        began = time.monotonic()
        self._ran(item, "seconds", lambda: time.monotonic() - began)
        return True


class Chosen(Quiet):
    """Runs these tests, quick ones first, and ends the process where one takes too long."""

    def __init__(self, tests: list[Test]) -> None:
        self.seconds = {test.name: test.seconds for test in tests}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if name_of(item) in self.seconds]
        items[:] = sorted(chosen, key=lambda item: self.seconds[name_of(item)])

    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        signal.alarm(math.ceil(PATIENCE[0] * self.seconds[name_of(item)] + PATIENCE[1]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        signal.alarm(0)


class Planted(SourceFileLoader):
    """Loads a module with its fault in place of the one without."""

    def __init__(self, fault: Fault, source: Path) -> None:
        module = ".".join(fault.path.with_suffix("").parts).removesuffix(".__init__")
        if module in sys.modules:
            raise SystemExit(f"error: {module} is loaded before its faults are planted")
        super().__init__(module, str(source / fault.path))
        self.source = fault.source

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> object:
        return compile(self.source, self.path, "exec", dont_inherit=True)


def start(work: Callable[[], int], log: Path) -> int:
    """The number of a new process that does `work`, and ends with the status that it returns."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        status = work()
    finally:
        sys.stdout.flush()
        os._exit(status)


def end(child: int) -> None:
    """Ends the processes that a process has left behind."""
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


@contextmanager
def copied(source: Path, package: str) -> Iterator[Path]:
    """A copy of the package, and of what it has where it is installed: its compiled core."""
    ignored = shutil.ignore_patterns("__pycache__")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory).resolve()
        installed = find_spec(package)
        if installed is not None and installed.origin is not None:
            shutil.copytree(Path(installed.origin).parent, folder / package, ignore=ignored)
        shutil.copytree(source / package, folder / package, ignore=ignored, dirs_exist_ok=True)
        compileall.compile_dir(folder / package, quiet=1)
        yield folder


def recorded(source: Path, options: argparse.Namespace, log: Path) -> list[Test]:
    """The tests that pass, as last written down in `--recorded`, or now if that is old."""
    file = log.with_name("reached")
    if options.recorded is not None and is_newest(options.recorded, [options.source, *options.tests]):
        file = options.recorded
    else:
        began = time.time()
        record(source, options.tests, log, file)
        if options.recorded is not None:
            shutil.copyfile(file, options.recorded)
            # What was changed meanwhile is newer.
            os.utime(options.recorded, (began, began))
    tests = collections.defaultdict[str, dict[str, Any]](dict)
    for line in file.read_text(encoding="utf-8").splitlines():
        name, part, told = json.loads(line)
        tests[name][part] = told
    return [
        Test(name, frozenset(map(tuple, told["reached"])), told["seconds"])
        for name, told in tests.items()
        if len(told) == 2
    ]


def is_newest(file: Path, others: list[Path | str]) -> bool:
    """Whether the file is there, and is newer than all Python and TOML files of the others."""
    if not file.exists():
        return False
    written = file.stat().st_mtime
    files = [
        path
        for folder in (Path(str(other).partition("::")[0]) for other in others)
        for path in ([folder] if folder.is_file() else folder.rglob("*"))
        if path.suffix in {".py", ".toml"}
    ]
    return all(path.stat().st_mtime < written for path in files)


def record(source: Path, arguments: list[str], log: Path, file: Path) -> None:
    """Writes down in `file` which tests pass, what they reach and how long they take."""
    child = start(lambda: pytest.main([*PYTEST, *arguments], plugins=[Recorder(source, file)]), log)
    _, status = os.waitpid(child, 0)
    end(child)
    if status or not file.exists():
        raise SystemExit(f"error: the tests do not run without a fault\n{log.read_text()[-3000:]}")


def main(arguments: list[str] | None = None) -> int:
    """Status 1 if fewer than `--least` of the faults are noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", help="folder or file below the sources, such as openmrc/localise")
    parser.add_argument("tests", nargs="+", help="what pytest runs")
    parser.add_argument("--source", type=Path, default=ROOT / "python", metavar="FOLDER")
    parser.add_argument("--sample", type=int, metavar="N", help="only N faults, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", metavar="REGEX", help="only faults with this in their names")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults at once")
    parser.add_argument(
        "--slow", type=float, default=3.0, metavar="SECONDS", help="slower tests are not run (%(default)s)"
    )
    parser.add_argument(
        "--least", type=float, default=1.0, metavar="SHARE", help="to be noticed, for status 0 (%(default)s)"
    )
    parser.add_argument(
        "--recorded",
        type=Path,
        metavar="FILE",
        help="keeps which tests reach what; read where it is newer than sources and tests, else written",
    )
    options = parser.parse_args(arguments)
    if options.sample is not None and options.sample < 1:
        parser.error(f"--sample: {options.sample} faults are none; at least 1")
    try:
        re.compile(options.only)
    except re.error as error:
        parser.error(f"--only: {error}")

    source = options.source.resolve()
    chosen = source / options.package
    if not chosen.exists():
        parser.error(f"there is no {chosen}")
    known = accepted()
    faults = [
        fault
        for file in (sorted(chosen.rglob("*.py")) if chosen.is_dir() else [chosen])
        for fault in faults_of(file.relative_to(source), file.read_text(encoding="utf-8"))
        if fault.name not in known and re.search(options.only, fault.name)
    ]
    if not faults:
        parser.error(f"there are no faults in {options.package}")
    if options.sample is not None and options.sample < len(faults):
        faults = random.Random(options.seed).sample(faults, options.sample)
    with (
        tempfile.TemporaryDirectory() as directory,
        copied(source, Path(options.package).parts[0]) as folder,
    ):
        os.environ["PYTHONPATH"] = str(folder)
        sys.path.insert(0, str(folder))
        for module in LOADED:
            with suppress(ImportError):
                importlib.import_module(module)
        survivors = hunt(faults, folder, Path(directory) / "log", options)
    noticed = len(faults) - len(survivors)
    print(f"\r{options.package}: {noticed} of {len(faults)} faults noticed")
    return int(noticed < options.least * len(faults))


def hunt(faults: list[Fault], source: Path, log: Path, options: argparse.Namespace) -> list[str]:
    """The names of the faults that no test notices."""
    tests = recorded(source, options, log)
    quick = [test for test in tests if test.seconds <= options.slow]
    print(f"{len(tests)} tests pass without a fault", end=", ")
    print(f"{len(tests) - len(quick)} of them take more than {options.slow:g} s and are not run", flush=True)

    def run(some: list[Test], fault: Fault | None) -> int:
        if fault is not None:
            sys.meta_path.insert(0, Planted(fault, source))
        return pytest.main(
            [*PYTEST, *sorted({test.name.partition("::")[0] for test in some})], plugins=[Chosen(some)]
        )

    # A process that is forked has nothing to collect of what is loaded now.
    gc.collect()
    gc.freeze()
    control = start(lambda: run(quick, None), log)
    _, status = os.waitpid(control, 0)
    end(control)
    if status:
        raise SystemExit(
            "error: tests fail without a fault, nothing can be said of faults"
            f" (status {os.waitstatus_to_exitcode(status)})\n{log.read_text()[-3000:]}"
        )

    began = time.monotonic()
    running: dict[int, Fault] = {}
    survivors = []
    done = 0

    def survived(fault: Fault) -> None:
        survivors.append(fault.name)
        print("\rnot noticed:", fault.name, flush=True)

    def wait() -> None:
        nonlocal done
        child, status = os.wait()
        end(child)
        fault = running.pop(child)
        done += 1
        if status == 0:
            survived(fault)
        if sys.stdout.isatty() or done % 50 == 0:
            last = "" if sys.stdout.isatty() else "\n"
            print(f"\r{done} of {len(faults)}, {len(survivors)} not noticed", end=last, flush=True)

    try:
        for fault in faults:
            some = [test for test in quick if (str(fault.path), fault.owner) in test.reached]
            if not some:
                survived(fault)
                done += 1
                continue
            while len(running) >= options.jobs:
                wait()
            child = start(lambda some=some, fault=fault: run(some, fault), Path(os.devnull))
            running[child] = fault
        while running:
            wait()
    finally:
        for child in running:
            end(child)
    print(f"\r{(time.monotonic() - began) / 60:.1f} min for {len(faults)} faults", flush=True)
    return survivors


if __name__ == "__main__":
    sys.exit(main())
