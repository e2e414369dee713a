"""Plants one fault at a time into a Python package and runs its tests: `make mutants-python`.

A fault replaces one operator, one constant or one result. A fault that no test notices is a survivor: it
gets a test, or a line with its reason in tests/helpers/mutants_accepted.toml.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import openmrc

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = Path(__file__).with_name("mutants_accepted.toml")

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Continue: ast.Break,
    ast.Break: ast.Continue,
}


@dataclass(frozen=True)
class Fault:
    """One planted fault: the module with it, and a name that does not depend on line numbers."""

    path: Path
    name: str
    source: str


def _replacement(node: ast.AST) -> ast.AST | None:
    """The faulty form of a node, if there is one."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPERATORS:
        return ast.Compare(node.left, [OPERATORS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(OPERATORS[type(node.op)](), node.values)
    # Types are joined by "|", and no program adds them.
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return node.operand
    if isinstance(node, ast.Continue | ast.Break):
        return OPERATORS[type(node)]()
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return ast.Constant(node.value + 1)
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        return ast.Return(ast.Constant(None))
    return None


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _places(node: ast.AST, owner: str = "") -> Iterator[tuple[str, ast.AST, str, int | None]]:
    """Each node below `node`: the function around it, its parent, the field, and its place in a list."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            # What an exception says is text for people, and the start of a script is not the package.
            if not isinstance(child, ast.AST) or isinstance(child, ast.Raise | ast.Import | ast.ImportFrom):
                continue
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = f"{owner}.{child.name}".lstrip(".") if named else owner
            yield owner, node, field, index
            yield from _places(child, inner)


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def faults_of(path: Path, source: str) -> Iterator[Fault]:
    """All faults of one module. Equal ones of one function are numbered."""
    tree = ast.parse(source)
    seen: dict[str, int] = {}
    for owner, parent, field, index in list(_places(tree)):
        value = getattr(parent, field)
        right = value if index is None else value[index]
        wrong = _replacement(right)
        if wrong is None:
            continue
        after = ast.unparse(ast.fix_missing_locations(copy.deepcopy(wrong)))
        name = f"{path}: {owner or 'module'}: {ast.unparse(right)} -> {after}"
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name += f" #{seen[name]}"

        _put(parent, field, index, ast.copy_location(wrong, right))
        faulty = ast.unparse(ast.fix_missing_locations(tree))
        _put(parent, field, index, right)
        yield Fault(path, name, faulty)


def accepted() -> dict[str, str]:
    """Survivors that may live, with their reasons."""
    return tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["accepted"]


def _tests_fail(tree: Path, tests: list[str], timeout: float | None) -> bool:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        *tests,
    ]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 if a fault survived that is not accepted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", help="folder or file below python/, such as openmrc/localise")
    parser.add_argument("tests", nargs="+", help="what pytest runs")
    parser.add_argument("--sample", type=int, metavar="N", help="only N faults, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    source = ROOT / "python"
    chosen = source / options.package
    files = sorted(chosen.rglob("*.py")) if chosen.is_dir() else [chosen]
    faults = [
        fault
        for file in files
        for fault in faults_of(file.relative_to(source), file.read_text(encoding="utf-8"))
        if fault.name not in accepted()
    ]
    total = len(faults)
    if options.sample and options.sample < total:
        faults = random.Random(options.seed).sample(faults, options.sample)
    survivors = []
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory)
        # The compiled core is where the package is installed.
        for package in (Path(openmrc.__file__).parent, source / "openmrc"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(package, tree / "openmrc", ignore=ignored, dirs_exist_ok=True)
        began = time.monotonic()
        if _tests_fail(tree, options.tests, None):
            sys.exit("error: the tests fail without a fault; run them by hand")
        limit = 30 + 5 * (time.monotonic() - began)
        for fault in faults:
            target = tree / fault.path
            right = target.read_text(encoding="utf-8")
            target.write_text(fault.source, encoding="utf-8")
            if not _tests_fail(tree, options.tests, limit):
                survivors.append(fault.name)
                print("not noticed:", fault.name, flush=True)
            target.write_text(right, encoding="utf-8")
    noticed = len(faults) - len(survivors)
    print(f"{options.package}: {noticed} of {len(faults)} faults noticed, {total} in all")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
