"""Which file imports which: of a Rust crate and of the Python package. Found in the text of the files.

A re-export is not an import: a name taken from a module that re-exports it is taken from the file that
defines it. Rust's test modules are left out; Python's imports for type checkers only are not.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

Module = tuple[str, ...]
Graph = dict[Module, set[Module]]

_TEST_MODULE = re.compile(r"#\[cfg\(test\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{")
_USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
_PATH = re.compile(r"(?<![\w:])[a-z_]\w*(?:::\w+)+")


def circles(graph: Graph) -> list[list[Module]]:
    """Sets of files of which each imports, at last, itself (Tarjan's strongly connected components)."""
    index: dict[Module, int] = {}
    low: dict[Module, int] = {}
    stack: list[Module] = []
    found = []

    def visit(module: Module) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            start = stack.index(module)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for module in graph:
        if module not in index:
            visit(module)
    return found


class Crate:
    """The files of a Rust crate."""

    def __init__(self, source: Path) -> None:
        self.files: dict[Module, Path] = {}
        for file in source.rglob("*.rs"):
            module = file.relative_to(source).with_suffix("").parts
            self.files[module[:-1] if module[-1] in ("mod", "lib") else module] = file
        self._text = {module: _code(file.read_text()) for module, file in self.files.items()}
        self._exports: dict[Module, dict[str, Module]] = {}
        for module, text in self._text.items():
            uses = [path for use in _USE.finditer(text) if use[1] for path in _leaves(use[2])]
            self._exports[module] = {alias: path for path, alias in uses}

    def graph(self) -> Graph:
        """The imports of each file."""
        return {module: set(self._imports(module)) - {module} for module in self.files}

    def _imports(self, module: Module) -> Iterator[Module]:
        text = self._text[module]
        modules: dict[str, Module] = {}
        paths = []
        for use in _USE.finditer(text):
            if use[1]:
                continue
            for path, alias in _leaves(use[2]):
                named = self._defining(self._absolute(module, path))
                if named is not None and named[1] is None:
                    modules[alias] = named[0]
                else:
                    paths.append(path)
        paths += [tuple(path[0].split("::")) for path in _PATH.finditer(_USE.sub("", text))]
        for path in paths:
            local = modules.get(path[0])
            absolute = (*local, *path[1:]) if local is not None else self._absolute(module, path)
            named = self._defining(absolute)
            if named is not None and named[1] is not None:
                yield named[0]

    def _absolute(self, module: Module, path: Module) -> Module | None:
        if path[0] == "crate":
            return path[1:]
        if path[0] not in ("self", "super") and (*module, path[0]) not in self.files:
            return None
        base, rest = module, path[1:] if path[0] == "self" else path
        while rest[:1] == ("super",):
            base, rest = base[:-1], rest[1:]
        return (*base, *rest)

    def _defining(self, path: Module | None, depth: int = 0) -> tuple[Module, str | None] | None:
        """The file that defines what an absolute path names, and the name in it; none for the file itself."""
        if path is None or depth > 8:
            return None
        length = next(n for n in range(len(path), -1, -1) if path[:n] in self.files)
        module, rest = path[:length], path[length:]
        if not rest:
            return module, None
        exports = self._exports[module]
        if rest[0] in exports:
            return self._defining(self._absolute(module, exports[rest[0]]), depth + 1)
        return module, rest[0]


def _code(text: str) -> str:
    """Without comments, strings and test modules."""
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"', "", text, flags=re.DOTALL)
    while (test := _TEST_MODULE.search(text)) is not None:
        depth, end = 1, test.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: test.start()] + text[end:]
    return text


def _leaves(use: str) -> Iterator[tuple[Module, str]]:
    """The paths of a `use` tree, each with the name under which it is known."""
    use = use.strip()
    brace = use.find("{")
    if brace < 0:
        path, _, alias = use.partition(" as ")
        parts = tuple(part.strip() for part in path.split("::") if part.strip())
        parts = parts[:-1] if parts[-1] == "self" and len(parts) > 1 else parts
        yield parts, alias.strip() or parts[-1]
        return
    prefix = tuple(part.strip() for part in use[:brace].split("::") if part.strip())
    depth, start = 0, brace + 1
    for place, char in enumerate(use[brace:], brace):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if (char == "," and depth == 1) or (char == "}" and depth == 0):
            if use[start:place].strip():
                for path, alias in _leaves(use[start:place]):
                    whole = (*prefix, *path) if path != ("self",) else prefix
                    yield whole, alias if path != ("self",) else prefix[-1]
            start = place + 1


class Package:
    """The files of a Python package."""

    def __init__(self, source: Path) -> None:
        self.files: dict[Module, Path] = {}
        for file in source.rglob("*.py"):
            module = (source.name, *file.relative_to(source).with_suffix("").parts)
            self.files[module[:-1] if module[-1] == "__init__" else module] = file
        self._trees = {module: ast.parse(file.read_text()) for module, file in self.files.items()}
        self._exports = {
            (module, alias): (base, name)
            for module, file in self.files.items()
            if file.name == "__init__.py"
            for base, name, alias in self._names(module, self._trees[module])
        }

    def graph(self) -> Graph:
        """The imports of each file, those inside of functions as well."""
        result: Graph = {}
        for module, tree in self._trees.items():
            named = {self._defining(base, name) for base, name, _ in self._names(module, tree)}
            if self._is_package(module):  # It re-exports what its own files define.
                named = {each for each in named if each[: len(module)] != module}
            result[module] = (named - {module}) & self.files.keys()
        return result

    def _is_package(self, module: Module) -> bool:
        return self.files[module].name == "__init__.py"

    def _names(self, module: Module, tree: ast.AST) -> Iterator[tuple[Module, str, str]]:
        package = module if self._is_package(module) else module[:-1]
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                base += tuple(node.module.split(".")) if node.module else ()
                yield from ((base, name.name, name.asname or name.name) for name in node.names)
            elif isinstance(node, ast.Import):
                for name in node.names:
                    parts = tuple(name.name.split("."))
                    yield parts[:-1], parts[-1], parts[-1]
            yield from self._names(module, node)

    def _defining(self, base: Module, name: str, depth: int = 0) -> Module:
        if (*base, name) in self.files:
            return (*base, name)
        if (base, name) in self._exports and depth < 8:
            return self._defining(*self._exports[base, name], depth + 1)
        return base
