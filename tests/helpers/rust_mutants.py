"""Plants all faults of cargo-mutants into crates at once, and runs the tests for each: `make mutants`.

Each fault is behind a switch (mutants/), so that the tests are compiled once and not once for each fault. A
test that does not reach a fault is not run for it. Faults in constants have no switch, and those that do not
compile are none; both are left out.
"""

import argparse
import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.repository import ROOT

BANDS = (0.03, 0.2, 1.0)
"""Quick tests first: seconds up to which tests are run together. Slower ones are not run."""
PATIENCE = (8, 6.0)
"""A test that takes so many times as long as without faults, and so many seconds, has noticed one."""
NO_FAULT = 0
"""Number of a fault that is none."""
SEEDS = 100
"""Of tests that take as many seeds as they are told."""


@dataclass(frozen=True)
class Test:
    """A test of a crate, the sites that it reaches, and how long it takes without faults, in seconds."""

    crate: str
    binary: str
    name: str
    sites: frozenset[int]
    seconds: float


class Tree:
    """A copy of the repository with a target directory of its own."""

    def __init__(self, folder: Path, crates: list[str]):
        self.folder = folder / "tree"
        self.crates = crates
        self.environment = os.environ | {
            "CARGO_TARGET_DIR": str(folder / "target"),
            "RUSTFLAGS": "--cap-lints=allow",
            "OPENMRC_SEEDS": str(SEEDS),
            "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1",
            "PROPTEST_MAX_SHRINK_ITERS": "0",
        }

    def fresh(self) -> None:
        """The files of the repository, also those that are not committed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name, follow_symlinks=False)

    def cargo(self, *arguments: str) -> tuple[bool, list[dict[str, Any]]]:
        """Whether it succeeded, and its messages."""
        packages = [argument for crate in self.crates for argument in ("--package", f"openmrc-{crate}")]
        done = subprocess.run(
            ["cargo", *arguments, "--locked", *packages, "--message-format", "json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode and not messages:
            raise SystemExit(done.stderr)
        return done.returncode == 0, messages


def listed(tree: Tree, cargo_mutants: Path, files: list[str]) -> list[dict[str, Any]]:
    """The faults of cargo-mutants, without the accepted ones; numbered from 1."""
    command = [str(cargo_mutants), "mutants", "--list", "--json"]
    command += [argument for crate in tree.crates for argument in ("--package", f"openmrc-{crate}")]
    command += [argument for file in files for argument in ("--file", file)]
    text = subprocess.run(command, cwd=tree.folder, check=True, capture_output=True, text=True).stdout
    return [fault | {"number": number} for number, fault in enumerate(json.loads(text), 1)]


def asked(fault: dict[str, Any]) -> dict[str, Any]:
    """A fault as the planter reads it."""
    # The value of a function is found by where the function begins.
    start = (fault["function"] if fault["genre"] == "FnValue" else fault)["span"]["start"]
    told = {key: fault[key] for key in ("number", "file", "genre", "replacement")}
    return told | {"at": [start["line"], start["column"]]}


def accused(tree: Tree, message: dict[str, Any]) -> set[int]:
    """The faults that an error of the compiler is about."""
    faults: set[int] = set()
    for span in message["spans"]:
        if not span["is_primary"]:
            continue
        lines = (tree.folder / span["file_name"]).read_text(encoding="utf-8").splitlines()
        if message["code"] and message["code"]["code"] == "E0004":
            # A match that lacks an arm: every arm of it that may be missing.
            depth = 0
            for line in lines[span["line_start"] - 1 :]:
                faults |= {int(number) for number in re.findall(r"!= (\d+)u32", line)}
                depth += line.count("{") - line.count("}")
                if depth <= 0:
                    break
            continue
        for line in reversed(lines[: span["line_start"]]):
            if found := re.findall(r"(\d+)u32 =>|!= (\d+)u32", line):
                faults.add(int(next(filter(None, found[-1]))))
                break
    return faults


def plant(tree: Tree, planter: Path, faults: list[dict[str, Any]]) -> list[list[int]]:
    """Plants those that compile. The faults of each site."""
    dropped: set[int] = set()
    constant: set[str] = set()
    while True:
        tree.fresh()
        wanted = [asked(fault) for fault in faults if fault["number"] not in dropped]
        request = {"constant": sorted(constant), "faults": wanted}
        done = subprocess.run(
            [planter, tree.folder], input=json.dumps(request), check=True, stdout=subprocess.PIPE, text=True
        )
        sites: list[list[int]] = [site["faults"] for site in json.loads(done.stdout)["sites"]]
        good, messages = tree.cargo("check", "--lib", "--tests", "--keep-going")
        if good:
            return sites
        errors = [m["message"] for m in messages if m["reason"] == "compiler-message"]
        errors = [error for error in errors if error["level"] == "error"]
        more, functions = set[int](), set[str]()
        for error in errors:
            called = re.search(r"`([^`]*)`", error["message"])
            if (error["code"] or {}).get("code") == "E0015" and called:
                functions.add(re.sub(r"::<.*$", "", called[1]).split("::")[-1])
            else:
                more |= accused(tree, error)
        if more <= dropped and functions <= constant:
            raise SystemExit("\n".join(error["rendered"] for error in errors[:3]))
        dropped |= more
        constant |= functions
        print(f"  {len(dropped)} faults do not compile", flush=True)


def covered(tree: Tree, jobs: int) -> tuple[list[Test], dict[str, Path]]:
    """The tests of the crates, and the program of each of their binaries."""
    good, messages = tree.cargo("test", "--profile", "mutants", "--no-run")
    if not good:
        raise SystemExit("the tests do not compile")
    programs: dict[str, Path] = {}
    wanted = []
    for message in messages:
        if (
            message["reason"] != "compiler-artifact"
            or not message["executable"]
            or not message["profile"]["test"]
        ):
            continue
        crate = Path(message["manifest_path"]).parent.name
        binary = f"{crate} {message['target']['name']}"
        programs[binary] = Path(message["executable"])
        told = subprocess.run(
            [programs[binary], "--list", "--format", "terse"], capture_output=True, text=True, check=True
        )
        wanted += [(crate, binary, line[:-6]) for line in told.stdout.splitlines() if line.endswith(": test")]

    def cover(job: tuple[str, str, str]) -> Test | None:
        crate, binary, name = job
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "sites"
            failed = run(tree, programs[binary], crate, [name], {"MUTANT_COVER": str(file)}, None)
            sites = frozenset(map(int, file.read_text().split())) if file.exists() else frozenset()
        if failed is not None:
            # Writing down what is reached may disturb it. A test that fails without a fault says nothing: it
            # needs all its seeds, or counts what the switch allocates.
            began = time.monotonic()
            failed = run(tree, programs[binary], crate, [name], {"MUTANT": str(NO_FAULT)}, None)
        return None if failed else Test(crate, binary, name, sites, time.monotonic() - began)

    with ThreadPoolExecutor(jobs) as pool:
        return [test for test in pool.map(cover, wanted) if test], programs


def run(
    tree: Tree, program: Path, crate: str, names: list[str], more: dict[str, str], limit: float | None
) -> str | None:
    """Runs tests of a binary; the one that fails, or why the run did not end."""
    try:
        done = subprocess.run(
            [program, "--exact", "--test-threads=1", *names],
            cwd=tree.folder / "crates" / crate,
            env=tree.environment | more,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 0:
        return None
    failed = re.search(r"^test (\S+) \.\.\. FAILED", done.stdout, re.MULTILINE)
    return failed[1] if failed else "the process died"


def noticed(tree: Tree, tests: list[Test], programs: dict[str, Path], fault: int) -> str | None:
    """The test that notices a fault, of those that reach it."""
    least = 0.0
    for most in BANDS:
        together: dict[str, list[Test]] = collections.defaultdict(list)
        for test in tests:
            if least <= test.seconds < most:
                together[test.binary].append(test)
        least = most
        for binary, some in together.items():
            limit = PATIENCE[0] * sum(test.seconds for test in some) + PATIENCE[1]
            names = [test.name for test in some]
            if by := run(tree, programs[binary], some[0].crate, names, {"MUTANT": str(fault)}, limit):
                return by
    return None


def main() -> int:
    """Status 1 if fewer than `--least` of the faults are noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("crates", nargs="+", help="names without openmrc-")
    parser.add_argument("--cargo-mutants", default="cargo-mutants", help="its program")
    parser.add_argument("--planter", type=Path, required=True, help="the program of mutants/")
    parser.add_argument(
        "--folder", type=Path, required=True, help="for the copy, what is built, and survivors.txt"
    )
    parser.add_argument("--file", action="append", default=[], help="only these: a glob, repeatable")
    parser.add_argument("--sample", type=int, metavar="N", help="only N faults, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at once")
    parser.add_argument(
        "--least", type=float, default=0.0, metavar="SHARE", help="to be noticed, for status 0"
    )
    arguments = parser.parse_args()
    if arguments.sample is not None and arguments.sample < 1:
        parser.error(f"--sample: {arguments.sample} faults are none; at least 1")

    cargo_mutants = shutil.which(arguments.cargo_mutants)
    if cargo_mutants is None:
        parser.error(f"there is no program {arguments.cargo_mutants}: cargo install cargo-mutants")
    tree = Tree(arguments.folder.resolve(), arguments.crates)
    tree.fresh()
    faults = listed(tree, Path(cargo_mutants).resolve(), arguments.file)
    if not faults:
        parser.error("there are no faults in these files")
    sites = plant(tree, arguments.planter.resolve(), faults)
    site_of = {fault: site for site, some in enumerate(sites) for fault in some}
    print(f"{len(faults)} faults, {len(site_of)} of them planted", flush=True)
    tests, programs = covered(tree, arguments.jobs)
    print(f"{len(tests)} tests, {sum(test.seconds for test in tests):.0f} s without faults", flush=True)
    if by := noticed(tree, tests, programs, NO_FAULT):
        raise SystemExit(f"{by} fails without a fault: nothing can be said of faults")

    drawn = sorted(site_of)
    if arguments.sample is not None:
        drawn = random.Random(arguments.seed).sample(drawn, min(arguments.sample, len(drawn)))
    name_of = {fault["number"]: fault["name"] for fault in faults}
    crate_of = {fault["number"]: fault["package"].removeprefix("openmrc-") for fault in faults}

    def hunt(fault: int) -> str | None:
        # A crate is answerable for its own faults.
        own = [test for test in tests if test.crate == crate_of[fault] and site_of[fault] in test.sites]
        return noticed(tree, own, programs, fault)

    began = time.monotonic()
    survivors = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for done, (fault, by) in enumerate(zip(drawn, pool.map(hunt, drawn), strict=True), 1):
            if by is None:
                survivors.append(fault)
            if sys.stdout.isatty() or done % 500 == 0:
                end = "" if sys.stdout.isatty() else "\n"
                print(f"\r{done} of {len(drawn)}, {len(survivors)} not noticed", end=end, flush=True)
    print(f"\r{len(drawn)} faults in {(time.monotonic() - began) / 60:.0f} min; not noticed:")
    text = "".join(f"{name_of[fault]}\n" for fault in sorted(survivors))
    (arguments.folder / "survivors.txt").write_text(text, encoding="utf-8")
    print(text, end="")
    low = False
    for crate in arguments.crates:
        of = [fault for fault in drawn if crate_of[fault] == crate]
        share = 1 - sum(crate_of[fault] == crate for fault in survivors) / max(1, len(of))
        low |= share < arguments.least
        print(f"{crate}: {100 * share:.1f} % of {len(of)} noticed")
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
