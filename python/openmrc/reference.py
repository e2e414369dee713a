"""The fields of scenarios, grids, fabric files, catalogues and jobs: as JSON Schema, and as docs/fields.md.

``python -m openmrc.reference CHECKOUT`` prints the page. The sources of defaults are comments beside them in
``crates/scenario/src``, which a checkout has and a wheel does not.
"""

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.fabric.catalogue import Catalogue
from openmrc.fabric.spec import Specification
from openmrc.jobs import Job, Network
from openmrc.sim import scenario
from openmrc.sim.scenario import Scenario
from openmrc.sim.scenario.part import Part, types
from openmrc.sim.sweep import Grid
from openmrc.units import unit_of_field

FILES: dict[str, type[BaseModel]] = {
    "scenario": Scenario,
    "grid": Grid,
    "fabric": Specification,
    "catalogue": Catalogue,
    "job": Job,
}
"""What a YAML file can be."""


class Row(NamedTuple):
    """A field in the reference."""

    name: str
    values: str
    """Type, range or words."""
    unit: str
    default: str
    meaning: str
    source: str
    """Where the default comes from."""


class _Schema(GenerateJsonSchema):
    """A schema in which what is read from text may be text: ``800G``, ``1M``, ``2ms``, ``3:1``, ``auto``."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        inner = super().function_before_schema(schema)
        if inner.get("type") in ("integer", "number") or "anyOf" in inner or "oneOf" in inner:
            return {"anyOf": [inner, {"type": "string"}]}
        if inner.get("type") == "array":
            return {"anyOf": [inner, inner["items"]]}
        return inner


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a file: ``scenario``, ``grid``, ``fabric``, ``catalogue`` or ``job``.

    Raises:
        ArgumentError: if there is no such kind of file.
    """
    if kind not in FILES:
        raise ArgumentError(f"{kind} is none of {', '.join(FILES)}")
    made = FILES[kind].model_json_schema(schema_generator=_Schema)
    if kind == "scenario":
        # A fabric file stands for the fields that a topology needs otherwise.
        topology = made["$defs"]["Topology"]
        topology["anyOf"] = [{"required": topology.pop("required")}, {"required": ["fabric"]}]
    for model in _models(kind):
        definition = made if model is FILES[kind] else made.get("$defs", {}).get(model.__name__)
        if definition is not None:
            _explain(definition["properties"], model)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": f"openmrc {kind}"}


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def _explain(properties: dict[str, Any], model: type[BaseModel]) -> None:
    """Gives the properties of a JSON Schema what an editor shows: meaning and unit; and the core's ranges."""
    of_core = types(json.loads(_core.scenario_schema())) if issubclass(model, Part) else {}
    for row in rows(model, {}):
        about = properties[row.name]
        if row.meaning:
            about["description"] = row.meaning.replace("``", "") + (f" Unit: {row.unit}." if row.unit else "")
        known = of_core.get(model.__name__, {}).get("properties", {}).get(row.name, {})
        limits = {
            key: each[key] for each in (known, *known.get("anyOf", ())) for key in _BOUNDS if key in each
        }
        for each in (about, *about.get("anyOf", ())):
            if each.get("type") in ("integer", "number"):
                each.update({key: limit for key, limit in limits.items() if key not in each})


def _models(kind: str) -> list[type[BaseModel]]:
    """The models in a file of this kind."""
    if kind == "scenario":
        return [Scenario, *_parts()]
    return list(_inside(FILES[kind]))


def _parts() -> list[type[BaseModel]]:
    """The parts of a scenario."""
    return [
        model
        for model in vars(scenario).values()
        if isinstance(model, type) and issubclass(model, Part) and model not in (Part, Scenario)
    ]


def rows(model: type[BaseModel], sources: dict[tuple[str, str], str]) -> Iterator[Row]:
    """The fields of a model."""
    texts = _docstrings(model)
    core = types(json.loads(_core.scenario_schema())) if issubclass(model, Part) else {}
    of_core = core.get(model.__name__, {}).get("properties", {})
    own = model.model_json_schema(schema_generator=_Schema)["properties"]
    for name, field in model.model_fields.items():
        about = of_core.get(name) or own[name]
        meaning = texts.get(name) or about.get("description", "")
        unit = unit_of_field(name)
        default = (
            "required"
            if field.is_required()
            else _default(about, field.get_default(call_default_factory=True))
        )
        if name == "kind" and "const" in own[name]:
            default = "required"
        # What several types have in common is said once, at the type that they are derived from.
        said = [sources[each.__name__, name] for each in model.__mro__ if (each.__name__, name) in sources]
        source = said[0] if said and default != "required" else ""
        yield Row(name, _values(about, own[name]), unit, default, " ".join(meaning.split()), source)


def _default(about: dict[str, Any], value: Any) -> str:
    if "default" in about:
        value = about["default"]
    if value is None:
        return "open"
    if isinstance(value, BaseModel) or (isinstance(value, dict) and value):
        return f"`{value['kind']}`" if isinstance(value, dict) and "kind" in value else "its own"
    if isinstance(value, list):
        return "none" if not value else ", ".join(_text(each) for each in value)
    return _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.12g}"
    return f"`{value.name if isinstance(value, Network) else value}`"


def _values(about: dict[str, Any], own: dict[str, Any]) -> str:
    """What a field can be, of the core's schema if it has one."""
    words = list(dict.fromkeys(_alternatives(about) or _alternatives(own)))
    return " or ".join(words)


def _alternatives(about: dict[str, Any]) -> list[str]:
    if "$ref" in about:
        name = about["$ref"].rpartition("/")[2]
        definition = json.loads(_core.scenario_schema())["$defs"].get(name, {})
        variants = [f"`{each['title']}`" for each in definition.get("oneOf", ()) if "title" in each]
        if variants:
            return [", ".join(variants)]
        # A list of words or a number has no section of its own.
        return _alternatives(definition) if definition and "properties" not in definition else [f"`{name}`"]
    for key in ("anyOf", "oneOf"):
        if key in about:
            return [word for each in about[key] for word in _alternatives(each)]
    if "enum" in about:
        return [", ".join(f"`{value}`" for value in about["enum"] if value is not None)]
    if "const" in about:
        return [f"`{about['const']}`"]
    kinds = about.get("type", [])
    found = []
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "array":
            inner = about.get("items") or {}
            found.append("list of " + " or ".join(_alternatives(inner)) if inner else "list")
        elif kind in ("integer", "number"):
            found.append(_range(kind, about))
        elif kind != "null":
            found.append({"string": "text", "boolean": "yes or no", "object": "fields"}[kind])
    return found


def _range(kind: str, about: dict[str, Any]) -> str:
    low, high = (
        about.get("minimum", about.get("exclusiveMinimum")),
        about.get("maximum", about.get("exclusiveMaximum")),
    )
    what = "whole number" if kind == "integer" else "number"
    above = "above " if "exclusiveMinimum" in about else ""
    below = "below " if "exclusiveMaximum" in about else ""
    if low is None and high is None:
        return what
    if high is None or high >= 2**32 - 1:
        return f"{what}, {above or 'from '}{low:,.12g}"
    return f"{what}, {above}{low:,.12g} to {below}{high:,.12g}"


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The text below each field in the source of a class and of the classes that it is derived from."""
    body = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for base in model.__bases__:
        if issubclass(base, Part) and base is not Part:
            found |= _docstrings(base)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(text, ast.Expr):
            continue
        if isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant):
            found[field.target.id] = str(text.value.value)
    return found


def sources(checkout: Path) -> dict[tuple[str, str], str]:
    """Comments beside the defaults of the core, by type and field."""
    found: dict[tuple[str, str], str] = {}
    for file in sorted((checkout / "crates/scenario/src").glob("*.rs")):
        text = file.read_text()
        for name, body in re.findall(r"^impl Default for (\w+) \{\n(.*?)^\}", text, re.M | re.S):
            for comment, field in re.findall(r"((?:^ +//[^/].*\n)+) +(\w+): ", body, re.M):
                found[name, field] = _uncommented(comment)
        reasons = {
            function: _uncommented(comment)
            for comment, function in re.findall(
                r"((?:^///.*\n)+)(?:pub(?:\(crate\))? )?(?:const )?fn (\w+)\(\)", text, re.M
            )
        }
        for name, body in re.findall(r"^pub struct (\w+) \{\n(.*?)^\}", text, re.M | re.S):
            for function, field in re.findall(r'default = "(\w+)"\)\]\n(?: +#.*\n)* +pub (\w+):', body):
                if function in reasons:
                    found[name, field] = reasons[function]
    return found


def _uncommented(comment: str) -> str:
    return " ".join(re.sub(r"^ *///?", "", line).strip() for line in comment.splitlines())


def page(checkout: Path) -> str:
    """The page docs/fields.md."""
    found = sources(checkout)
    lines = [
        "# Fields of scenarios, grids, fabric files, catalogues and jobs",
        "",
        "Generated by `make docs` from the types that check the files; a test checks that it is current.",
        "`openmrc simulate --schema`, `openmrc sweep --schema`, `openmrc plan --schema` and",
        "`openmrc job --schema` print JSON Schemas.",
        "`open` means that what is left out follows from other fields. Rates can be written as `400G`,",
        "lengths as `30 m`, ratios as `3:1`. us, ns and bit/s are the units of plain numbers; B are bytes.",
        "",
    ]
    sections: tuple[tuple[str, list[type[BaseModel]]], ...] = (
        ("Scenario", [Scenario, *sorted(_parts(), key=lambda part: part.__name__)]),
        ("Grid of `openmrc sweep`", [Grid]),
        ("Fabric file", list(_inside(Specification))),
        ("Catalogue of parts", list(_inside(Catalogue))),
        ("Job of `openmrc job`", list(_inside(Job))),
    )
    for title, models in sections:
        lines += [f"## {title}", ""]
        for model in models:
            lines += [*_table(model, found), ""]
    return "\n".join(lines)


def _inside(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and the models in its fields."""
    from openmrc.model import models_of

    yield model
    for field in model.model_fields.values():
        for inner in models_of(field.annotation):
            yield from _inside(inner)


def _table(model: type[BaseModel], found: dict[tuple[str, str], str]) -> Iterator[str]:
    yield f"### {model.__name__}"
    yield ""
    yield " ".join(inspect.cleandoc(model.__doc__ or "").replace("``", "`").split())
    yield ""
    yield "| field | values | unit | default | meaning | source of the default |"
    yield "|---|---|---|---|---|---|"
    for row in rows(model, found):
        cells = [f"`{row.name}`", *row[1:]]
        yield "| " + " | ".join(cell.replace("``", "`").replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(page(Path(sys.argv[1])), end="")
