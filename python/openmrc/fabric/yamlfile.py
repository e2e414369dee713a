"""Reads a YAML file into a pydantic model; errors have one line: file, line, field, reason."""

import re
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from openmrc.errors import FormatError
from openmrc.files import read_text
from openmrc.model import joined, most_specific, shortened, words, worth_naming

Model = TypeVar("Model", bound=BaseModel)

Location = tuple[int | str, ...]

_MOST_BYTES = 1 << 20
"""A specification is about a page of text. A large file is none, and YAML would take long to parse it."""
_MOST_VALUES = 100_000
"""The parser takes seconds for them. Aliases count as what they stand for: a few lines can be billions."""
_TOO_MANY = f"more than {_MOST_VALUES:,} values"


KINDS = {
    "fabric": ("nic", "switch"),
    "scenario": ("topology", "traffic"),
    "grid": ("base", "axes"),
    "job": ("gpus", "days"),
}
"""The fields that tell the kinds of files apart."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses duplicate keys: one of the two would be ignored silently."""

    _count = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=_TOO_MANY)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (KeyError, ValueError, AttributeError, TypeError, OverflowError):
            # PyYAML's own errors for a text that its tag does not allow, such as `!!bool x` and 2024-13-45.
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            text = f"{node.value} is no {kind}" if isinstance(node, yaml.ScalarNode) else f"this is no {kind}"
            raise yaml.MarkedYAMLError(problem=text, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem="a key is not a name", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"{key} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 3:1 as the number 181 (base 60) and 010 as 8. Here a number is a decimal number.
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_NUMBERS[0], re.compile(r"-?(0|[1-9][0-9]*)$", re.ASCII), list("-0123456789"))
_Loader.add_implicit_resolver(
    _NUMBERS[1], re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$", re.ASCII), list("-0123456789")
)


class Source(NamedTuple):
    """The file of a model, and the lines of its fields."""

    path: Path
    root: yaml.Node | None

    def at(self, location: Location) -> str:
        """``file:line`` of the innermost part of a location that the file has; or only the file."""
        line = _line(self.root, location)
        return f"{self.path}:{line}" if line else str(self.path)


class Sourced(BaseModel):
    """A model that remembers its file, for messages about errors that are found later."""

    _source: Source | None = PrivateAttr(None)

    def place(self, *location: int | str) -> str:
        """The place of a field, for messages: ``file:line: field``, or only the field."""
        field = ".".join(str(part) for part in location)
        return f"{self._source.at(location)}: {field}" if self._source else field

    def __eq__(self, other: object) -> bool:
        """Whether the fields are equal; the files do not matter."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    @property
    def beside(self) -> Path:
        """The directory for relative names of other files."""
        return self._source.path.parent if self._source else Path()


def read(path: Path, model: type[Model]) -> Model:
    """The file as a model; a :class:`Sourced` model knows the line of each field.

    Raises:
        FormatError: if it is not YAML or does not fit the model, naming file, line and field.
        OSError: if it cannot be read.
    """
    text = read_text(path, most=_MOST_BYTES)
    try:
        node, value = _loaded(text)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise FormatError(f"{path}{line}: {shortened(error.problem or 'not YAML')}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or "nested too deeply"
        raise FormatError(f"{path}: not YAML: {reason}") from None
    if not isinstance(value, dict):
        found = {type(None): "nothing", list: "a list", str: "text"}.get(type(value), "a single value")
        raise FormatError(f"{path}: expected fields like `hosts: 16`, found {found}")
    try:
        # Of pydantic itself: a model's own method has one line for what is wrong, and no lines of the file.
        made: Model = model.__pydantic_validator__.validate_python(value, context={"beside": path.parent})
    except ValidationError as error:
        if (kinds := _kinds(value, model)) is not None:
            raise FormatError(
                f"{path}: this is a {kinds[0]} file; a {kinds[1]} file is expected here"
            ) from None
        raise FormatError(_describe(path, node, error, model)) from None
    if isinstance(made, Sourced):
        made._source = Source(path, node)
    return made


def _kinds(value: Mapping[object, object], model: type[BaseModel]) -> tuple[str, str] | None:
    """What a file is and what it should be, if it is a file of another kind."""

    def kind(names: Collection[object]) -> str | None:
        return next((kind for kind, fields in KINDS.items() if all(field in names for field in fields)), None)

    found, expected = kind(value), kind(model.model_fields)
    return (found, expected) if found and expected and found != expected else None


def value_of(text: str) -> Any:
    """A value as a file may have it, such as ``64K``, ``1.5`` or ``[1, 2]``.

    Raises:
        FormatError: if it is no YAML.
    """
    try:
        return _loaded(text)[1]
    except (yaml.YAMLError, ValueError, RecursionError):
        raise FormatError(f"{shortened(text)} is not a value") from None


def _loaded(text: str) -> tuple[yaml.Node | None, Any]:
    """The text as nodes, which know their lines, and as a value."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        if _values(node, {}) > _MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=_TOO_MANY)
        return node, loader.construct_document(node)
    finally:
        loader.dispose()


def _values(node: yaml.Node, seen: dict[int, int]) -> int:
    """How many values a node has, with those that its aliases stand for."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if (known := seen.get(id(node))) is not None:
        if not known:
            raise yaml.MarkedYAMLError(problem="it contains itself", problem_mark=node.start_mark)
        return known
    seen[id(node)] = 0
    pairs = isinstance(node, yaml.MappingNode)
    children = [child for pair in node.value for child in pair] if pairs else node.value
    seen[id(node)] = 1 + sum(_values(child, seen) for child in children)
    return seen[id(node)]


def _describe(path: Path, root: yaml.Node | None, error: ValidationError, model: type[BaseModel]) -> str:
    """One line: what is wrong first, missing fields, every misspelt one with line and nearest neighbour."""
    first, others = most_specific(error.errors(include_url=False))

    def described(problem: ErrorDetails, *, also: bool = False) -> tuple[int | None, str]:
        location = _without_tags(root, problem["loc"], missing=problem["type"] == "missing")
        field = ".".join(str(part) for part in location)
        return _line(root, location), f"{f'{field}: ' if field else ''}{words(problem, model, also=also)}"

    line, text = described(first)
    named = [described(other, also=True) for other in worth_naming(others, first)]
    also = [f"{f'line {at}: ' if at else ''}{what}" for at, what in named]
    return f"{path}{f':{line}' if line else ''}: {joined(text, also, others)}"


def _without_tags(node: yaml.Node | None, location: Location, *, missing: bool) -> Location:
    """A location without pydantic's names of union branches, which are not in the file."""
    kept: list[int | str] = []
    for place, part in enumerate(location):
        if isinstance(part, int) and isinstance(node, yaml.MappingNode):
            continue  # The only member of a list, written without the list.
        keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        # A missing field is not in the file, but the message must name it.
        if isinstance(part, str) and part not in keys and not (missing and place == len(location) - 1):
            continue
        kept.append(part)
        node = _child(node, part)
    return tuple(kept)


def _child(node: yaml.Node | None, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        child: yaml.Node = node.value[part]
        return child
    return None


def _line(node: yaml.Node | None, location: Location) -> int | None:
    """The line, from 1, of the innermost part of a location that the file has."""
    line = None
    for part in location:
        found = None
        if isinstance(node, yaml.MappingNode):
            if isinstance(part, int):
                continue
            for key, value in node.value:
                if key.value == part:
                    line, found = key.start_mark.line + 1, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            found = node.value[part]
            line = found.start_mark.line + 1
        if found is None:
            break
        node = found
    return line
