"""What all parts of a scenario have in common: their defaults and their checks are those of the core.

The models mirror the types of ``crates/scenario/src``, name by name and field by field. A field that is left
open is not handed over: the core fills it in.
"""

import json
from collections.abc import Callable
from contextvars import ContextVar
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin

from pydantic import BeforeValidator, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from openmrc import _core, units
from openmrc.errors import ArgumentError
from openmrc.fabric import yamlfile
from openmrc.model import Model

OPEN: Any = object()
"""The default of a field that the core fills in. The class then has the core's default for it."""


def types(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The types of a JSON Schema of the core by name; variants of a union are named by their titles."""
    found: dict[str, dict[str, Any]] = {"Scenario": schema, **schema["$defs"]}
    for definition in schema["$defs"].values():
        variants = definition.get("oneOf", ())
        found.update({variant["title"]: variant for variant in variants if "title" in variant})
    return found


_TYPES = types(json.loads(_core.scenario_schema()))


def _default(part: str, field: str) -> Any:
    default = _TYPES[part]["properties"][field]["default"]
    # A part inside another is open as a whole: only its kind is to be known.
    return {"kind": default["kind"]} if isinstance(default, dict) and "kind" in default else default


_INSIDE: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether the part that is made is inside another one, which is checked as a whole."""


def _is_number(annotation: Any) -> bool:
    """Whether a field holds a number, or nothing."""
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    plain = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds}
    return plain <= {int, float, NoneType} and plain != {NoneType}


def _text_read_by(read: Callable[[str], float]) -> Callable[[Any], Any]:
    return lambda value: read(value) if isinstance(value, str) else value


class Part(Model):
    """A part of a scenario, checked by the core as it is made: once, with all the parts inside it.

    A number whose field has a unit may be a text with one: ``bytes: 1M``, ``at_us: 2ms``, ``load: 50%``.
    """

    model_config = ConfigDict(allow_inf_nan=False, ser_json_inf_nan="constants", validate_default=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.__name__ in _TYPES:
            for name, field in cls.model_fields.items():
                if field.default is OPEN:
                    field.default = _default(cls.__name__, name)
                read = units.parse_in(units.unit_of_field(name))
                has_reader = any(isinstance(each, BeforeValidator) for each in field.metadata)
                if read is not None and not has_reader and _is_number(field.annotation):
                    field.metadata.append(BeforeValidator(_text_read_by(read)))
            cls.model_rebuild(force=True)

    def model_post_init(self, context: Any) -> None:
        """Marks the kind as set: it distinguishes the parts of a list, and is always handed over."""
        super().model_post_init(context)
        if "kind" in type(self).model_fields:
            self.__pydantic_fields_set__.add("kind")

    @model_validator(mode="wrap")
    @classmethod
    def _checked_once(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if _INSIDE.get():
            return handler(value)
        token = _INSIDE.set(True)
        try:
            part = handler(value)
        finally:
            _INSIDE.reset(token)
        part._check()
        return part

    def _check(self) -> None:
        """Has the core check the part and all parts inside it."""
        name = type(self).__name__
        try:
            _core.check_scenario_part(name, self.model_dump_json(exclude_unset=True, exclude={"kind"}))
        except ArgumentError as error:
            place, message = place_of(error)
            # A field that nobody has written has no line in a file: the text names it.
            written = self._written(place)
            text = ".".join(map(str, place[len(written) :]))
            raised = PydanticCustomError(
                "scenario", "{message}", {"message": f"{text}: {message}" if text else message}
            )
            details = InitErrorDetails(type=raised, loc=written, input=None)
            raise ValidationError.from_exception_data(name, [details]) from None

    def _written(self, place: yamlfile.Location) -> yamlfile.Location:
        """As much of a place as somebody has written."""
        value: Any = self
        for index, step in enumerate(place):
            if isinstance(value, Part):
                if step not in value.model_fields_set:
                    return place[:index]
                value = getattr(value, str(step))
            elif isinstance(value, list | tuple) and isinstance(step, int):
                value = value[step]
        return place


def place_of(error: Exception) -> tuple[yamlfile.Location, str]:
    """The place that an error of the core is about, and its message without the place."""
    place: yamlfile.Location = getattr(error, "place", ())
    return place, str(error).removeprefix(".".join(map(str, place)) + ": ")
