"""Pydantic models whose errors are :class:`openmrc.Error`; these errors in words of a file, not of Python."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from openmrc.errors import ArgumentError

_MOST_NAMES = 24
"""Fields that are listed where none is like a misspelt one."""
_MOST_PROBLEMS = 2
"""Misspelt and missing fields that are listed after the first problem."""
_MOST_LETTERS = 600
"""Of one problem in a message."""


if TYPE_CHECKING:
    _Base = BaseModel
else:

    class _Checked(type(BaseModel)):
        """Makes an instance; what pydantic refuses is an :class:`ArgumentError`.

        An ``__init__`` of the model's own would also be called for models inside models, and what is wrong in
        them would lose its place.
        """

        def __call__(cls, *positional: Any, **named: Any) -> Any:
            with _refused(cls):
                return super().__call__(*positional, **named)

    class _Base(BaseModel, metaclass=_Checked):
        pass


class Model(_Base):
    """A model that refuses fields it does not know, that nothing changes, and whose errors are openmrc's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """As of pydantic.

        Raises:
            ArgumentError: for everything that is wrong, in one line.
        """
        with _refused(cls):
            return super().model_validate(obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """As of pydantic.

        Raises:
            ArgumentError: for everything that is wrong, in one line.
        """
        with _refused(cls):
            return super().model_validate_json(json_data, **options)


@contextmanager
def _refused(model: type[BaseModel]) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        raise ArgumentError(in_words(error, model)) from None


def in_words(error: ValidationError, model: object) -> str:
    """What is wrong, in one line: the first problem, and every field that is missing or that there is not.

    Args:
        error: What pydantic has found.
        model: The type that it has checked.
    """
    problems = error.errors(include_url=False)
    first, others = most_specific(problems)

    def described(problem: ErrorDetails, *, also: bool = False) -> str:
        field = ".".join(str(part) for part in without_tags(problem["loc"], model))
        what = words(problem, model, also=also)
        return f"{field}: {what}" if field else what

    named = [described(other, also=True) for other in worth_naming(others, first)]
    return joined(described(first), named, others)


def joined(first: str, named: list[str], others: list[ErrorDetails]) -> str:
    """The first problem, the fields that are misspelt or missing, and the number of what is left out."""
    left = len(others) - len(named)
    return "; ".join(map(shortened, [first, *named])) + (f" (and {left:,} more)" if left else "")


def shortened(text: str) -> str:
    """A text for a message, which may quote a value of any length."""
    return text if len(text) <= _MOST_LETTERS else f"{text[:300]}...{text[-200:]}"


def worth_naming(others: list[ErrorDetails], first: ErrorDetails) -> list[ErrorDetails]:
    """The problems that are named beside the first one, and only a few.

    They are fields that are misspelt or missing, and one problem of each other field of the file. A union has
    problems of all of its branches at one place, of which most are not meant.
    """
    seen = {first["loc"][:1]}
    named = []
    for each in others:
        if is_about_a_name(each, first) or each["loc"][:1] not in seen:
            named.append(each)
        seen.add(each["loc"][:1])
    return named[:_MOST_PROBLEMS]


def most_specific(problems: list[ErrorDetails]) -> tuple[ErrorDetails, list[ErrorDetails]]:
    """The first problem and the others; if several types are possible there, that with the closest type."""
    first = problems[0]["loc"]
    specific = problems[0]
    if first:
        same = [problem for problem in problems if problem["loc"][: len(first) - 1] == first[:-1]]
        branch = isinstance(first[-1], str) and all(len(problem["loc"]) >= len(first) for problem in same)
        if branch:
            specific = max(same, key=lambda problem: len(problem["loc"]))
    return specific, [problem for problem in problems if problem is not specific]


def is_about_a_name(problem: ErrorDetails, first: ErrorDetails) -> bool:
    """Whether it is about a field that there is not, or one that is missing where the first problem is.

    What is missing elsewhere may be so only in a type that is not meant.
    """
    beside = problem["loc"][:-1] == first["loc"][:-1]
    return problem["type"] == "extra_forbidden" or (problem["type"] == "missing" and beside)


_EXPECTED = {
    "int": "a whole number, such as 16",
    "float": "a number, such as 0.5",
    "string": "text",
    "bool": "true or false",
    "list": "a list, such as [1, 2]",
    "tuple": "a list, such as [1, 2]",
    "dict": "fields, such as {name: value}",
}
"""What a field takes, by the beginning of pydantic's name for the problem."""

_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
}


def words(problem: ErrorDetails, model: object = None, *, also: bool = False) -> str:
    """The reason, in words of a file and not of Python.

    Args:
        problem: What pydantic has found.
        model: The type that it has checked, to find the field that a misspelt one may mean.
        also: It is not the first problem: the list of all fields has been said.
    """
    kind = problem["type"]
    match kind:
        case "extra_forbidden":
            names = [] if model is None else fields_at(model, problem["loc"][:-1])
            return "there is no such field" + _instead(str(problem["loc"][-1]), names, near_only=also)
        case "missing":
            return "this field is missing"
        case "union_tag_not_found":
            return "kind: this field is missing"
        case "union_tag_invalid":
            context = problem["ctx"]
            return f"kind: {context['tag']} is none of {context['expected_tags'].replace(chr(39), '')}"
        case "literal_error" | "enum":
            return f"expected {problem['ctx']['expected'].replace(chr(39), '')}"
        case "model_type" | "model_attributes_type" | "dataclass_type":
            return _fields_instead(model, problem["loc"], problem.get("input"))
        case _ if kind in _BOUNDS:
            return _BOUNDS[kind].format_map(problem["ctx"])
        case _ if (family := kind.partition("_")[0]) in _EXPECTED and kind.endswith(_WRONG_TYPE):
            return f"expected {_EXPECTED[family]}"
    return problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")


_WRONG_TYPE = ("_type", "_parsing", "_from_float")


def _fields_instead(model: object, location: tuple[int | str, ...], value: object) -> str:
    """What to write instead of a value where fields are expected: the fields, with this value if it fits."""
    types = _types_at(model, location)
    fields = {name: field for each in types for name, field in each.model_fields.items()}
    names = [name for name, field in fields.items() if field.is_required()] or list(fields)[:1] or ["name"]
    if isinstance(value, str | int | float) and len(names) == 1 and len(str(value)) <= _MOST_LETTERS // 10:
        for each in types:
            with suppress(ValidationError):
                each.__pydantic_validator__.validate_python({names[0]: value})
                return f"write {{{names[0]}: {value}}}"
    return "expected fields, such as {" + ", ".join(f"{name}: ..." for name in names[:3]) + "}"


def _instead(name: str, names: list[str], *, near_only: bool) -> str:
    near = difflib.get_close_matches(name[:64], names, n=1, cutoff=0.5)
    if near:
        return f", did you mean {near[0]}?"
    if near_only:
        return ""
    return f"; there are {', '.join(sorted(names))}" if 0 < len(names) <= _MOST_NAMES else ""


def fields_at(model: object, location: tuple[int | str, ...]) -> list[str]:
    """Names of the fields that the part of a model at a location can have; empty if it has no fields."""
    return sorted({name for each in _types_at(model, location) for name in each.model_fields})


def without_tags(location: tuple[int | str, ...], model: object) -> tuple[int | str, ...]:
    """A location without pydantic's names of the branches of a union, which are no fields."""
    kept: list[int | str] = []
    for place, part in enumerate(location):
        names = fields_at(model, location[:place])
        last = place == len(location) - 1
        if isinstance(part, int) or part in names or (last and names):
            kept.append(part)
    return tuple(kept)


def _types_at(model: object, location: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models that a location can hold."""
    found = models_of(model)
    for part in location:
        if isinstance(part, int):
            continue
        inner: list[type[BaseModel]] = []
        for each in found:
            if part in each.model_fields:
                inner += models_of(each.model_fields[part].annotation)
        # Otherwise it names the branch of a union: by its kind, or by the name of the type.
        found = inner or [each for each in found if part in (_kind(each), each.__name__)] or found
    return found


def _kind(model: type[BaseModel]) -> object:
    field = model.model_fields.get("kind")
    return field.default if field is not None else None


def models_of(annotation: object) -> list[type[BaseModel]]:
    """The models in a type: itself, the branches of a union, the members of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, Union, UnionType, list, tuple, dict):
        return [model for part in get_args(annotation) for model in models_of(part)]
    return []
