"""The faults of a Python module, one operator, constant or result each, and those that may go unnoticed."""

import ast
import copy
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    """A fault of a function (nothing: of the module), named without line numbers, and the module with it."""

    path: Path
    owner: str
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
        yield Fault(path, owner, name, faulty)


def accepted() -> dict[str, str]:
    """Faults that no test has to notice, with their reasons."""
    groups = tomllib.loads(ACCEPTED.read_text(encoding="utf-8")).get("accepted", [])
    return {name: group["reason"] for group in groups for name in group["faults"]}
