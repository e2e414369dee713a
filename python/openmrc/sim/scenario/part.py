"""What all parts of a scenario have in common: their defaults and their checks are those of the core.

The models mirror the types of ``crates/scenario/src``, name by name and field by field. A field that is left
open is not handed over: the core fills it in.
"""

import json
from typing import Any

from pydantic import ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from openmrc import _core
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


class Part(Model):
    """A part of a scenario, checked by the core as it is made."""

    model_config = ConfigDict(allow_inf_nan=False, ser_json_inf_nan="constants", validate_default=True)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Before pydantic looks at the fields of the class.
        for name in [name for name, value in vars(cls).items() if value is OPEN]:
            setattr(cls, name, _default(cls.__name__, name))

    def model_post_init(self, context: Any) -> None:
        """Has the core check the part."""
        super().model_post_init(context)
        if "kind" in type(self).model_fields:
            # It distinguishes the parts of a list, and is always handed over.
            self.__pydantic_fields_set__.add("kind")
        name = type(self).__name__
        try:
            _core.check_scenario_part(name, self.model_dump_json(exclude_unset=True, exclude={"kind"}))
        except ArgumentError as error:
            place, message = place_of(error)
            if not place or place[0] not in self.model_fields_set:
                # A field that nobody has written has no line in a file: the text names it.
                place, message = (), str(error)
            raised = PydanticCustomError("scenario", "{message}", {"message": message})
            value = getattr(self, str(place[0])) if place else None
            details = InitErrorDetails(type=raised, loc=place, input=value)
            raise ValidationError.from_exception_data(name, [details]) from None


def place_of(error: Exception) -> tuple[yamlfile.Location, str]:
    """The place that an error of the core is about, and its message without the place."""
    place: yamlfile.Location = getattr(error, "place", ())
    return place, str(error).removeprefix(".".join(map(str, place)) + ": ")
