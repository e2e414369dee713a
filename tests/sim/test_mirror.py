"""The Python models of a scenario and the core's types agree in names, kinds and defaults, both ways."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openmrc import _core, sim
from openmrc.sim import check, scenario
from openmrc.sim.scenario.part import Part, types
from tests.helpers.repository import ROOT

Schema = dict[str, Any]

CORE: Schema = json.loads(_core.scenario_schema())
CORE_TYPES = {name: schema for name, schema in types(CORE).items() if "properties" in schema}
MODELS = {
    name: model
    for name, model in vars(scenario).items()
    if isinstance(model, type) and issubclass(model, Part) and model is not Part
}

READ_FROM_TEXT = {("Topology", "oversubscription")}
"""Fields that Python reads in more forms than it hands over."""

NOT_HANDED_OVER = {("Topology", "fabric")}
"""Fields that Python replaces by others."""


def alternatives(schema: Schema, definitions: Schema) -> Iterator[object]:
    """The kinds of values that a schema allows: words, types, lists and parts, without ranges and texts."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        definition = definitions[name]
        if "properties" in definition:
            yield f"part {name}"
        else:
            yield from alternatives(definition, definitions)
        return
    for each in schema.get("anyOf", schema.get("oneOf", ())):
        yield from alternatives(each, definitions)
    if "const" in schema:
        yield repr(schema["const"])
    elif "enum" in schema:
        yield from map(repr, schema["enum"])
    elif schema.get("type") == "object":
        yield f"part {schema['title']}"
    elif schema.get("type") == "array" or "array" in schema.get("type", ()):
        items = schema.get("prefixItems") or [schema["items"]] * schema.get("minItems", 1)
        bounded = schema.get("maxItems") == len(items)
        yield ("list", bounded, tuple(frozenset(alternatives(item, definitions)) for item in items))
        yield from (kind for kind in schema["type"] if isinstance(schema["type"], list) and kind != "array")
    else:
        kinds = schema.get("type", [])
        yield from [kinds] if isinstance(kinds, str) else kinds


def kinds(schema: Schema, definitions: Schema) -> frozenset[object]:
    return frozenset(alternatives(schema, definitions))


def test_every_type_of_the_core_has_a_model_and_every_model_a_type() -> None:
    assert set(MODELS) == set(CORE_TYPES)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_fields_have_the_same_names_and_kinds_and_are_required_alike(name: str) -> None:
    core, python = CORE_TYPES[name], MODELS[name].model_json_schema()
    definitions = python.get("$defs", {})
    assert core["additionalProperties"] is python["additionalProperties"] is False
    assert set(core["properties"]) == {
        field for field in python["properties"] if (name, field) not in NOT_HANDED_OVER
    }
    # The core needs the kind to know the type; a model has it from its class.
    assert set(core.get("required", ())) - {"kind"} == set(python.get("required", ()))
    for field, schema in core["properties"].items():
        if (name, field) not in READ_FROM_TEXT:
            assert kinds(schema, CORE["$defs"]) == kinds(python["properties"][field], definitions), field


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_field_left_open_has_the_default_of_the_core(name: str) -> None:
    model, core = MODELS[name], CORE_TYPES[name]
    for field, about in model.model_fields.items():
        if (name, field) in NOT_HANDED_OVER:
            continue
        if about.is_required() or field == "kind":
            assert "default" not in core["properties"][field]
            continue
        default = about.get_default(call_default_factory=True)
        shown = json.loads(json.dumps(default, default=lambda part: part.model_dump(mode="json")))
        theirs = core["properties"][field]["default"]
        if isinstance(theirs, dict):
            # A part of its own, whose fields are compared with the core's where it is at home.
            assert set(shown) <= set(theirs)
            assert all(shown[inner] == theirs[inner] for inner in shown if not isinstance(shown[inner], dict))
        else:
            assert shown == theirs, field


def test_what_is_left_open_is_not_handed_over() -> None:
    written = {"topology": {"hosts": 4, "radix": 4}, "traffic": [{"kind": "permutation", "bytes": 1}]}
    assert json.loads(sim.Scenario.model_validate(written).to_json()) == written
    made = sim.Scenario(topology=sim.Topology(hosts=4, radix=4), traffic=[sim.Permutation(bytes=1)])
    assert json.loads(made.to_json()) == written


EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_with_everything_filled_in_is_a_scenario_and_runs_the_same(file: Path) -> None:
    written = sim.load(file)
    filled = check.filled(written)
    assert check.filled(filled) == filled
    one, other = sim.run(written), sim.run(filled)
    assert one.totals == other.totals
    assert bytes(one.columns["delivered_ps"]) == bytes(other.columns["delivered_ps"])
