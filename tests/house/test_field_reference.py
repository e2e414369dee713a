"""The field reference, JSON Schemas and shipped examples: current, complete, and what the readers accept."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from openmrc import examples, jobs, reference, sim
from openmrc.cli import main
from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.sim import sweep as sweeping
from tests.helpers.repository import ROOT


def test_the_page_of_fields_is_current() -> None:
    assert (ROOT / "docs" / "fields.md").read_text() == reference.page(ROOT), "run `make docs`"


def test_every_field_has_a_meaning_and_defaults_of_the_core_have_sources() -> None:
    sources = reference.sources(ROOT)
    from openmrc.sim import scenario

    parts = [part for part in vars(scenario).values() if hasattr(part, "model_fields")]
    rows = {(part.__name__, row.name): row for part in parts for row in reference.rows(part, sources)}
    assert [place for place, row in rows.items() if not row.meaning and place[1] != "kind"] == []
    assert rows["Network", "convergence_us"].unit == "us"
    assert rows["Network", "convergence_us"].source.startswith("BGP takes 0.1 s")
    assert rows["Topology", "tiers"].source == "As the reference fabric has (docs/spec/fabric.md)."
    assert rows["Topology", "planes"].values == "whole number, 1 to 16"
    assert rows["Rocev2", "recovery"].values == "`go-back-n` or `selective-repeat`"


def fits(schema: dict[str, Any], value: Any, whole: dict[str, Any]) -> bool:
    """Whether a value fits a JSON Schema: the words that pydantic uses."""
    if "$ref" in schema:
        return fits(whole["$defs"][schema["$ref"].rpartition("/")[2]], value, whole)
    if not all(
        any(fits(each, value, whole) for each in schema[key]) for key in ("anyOf", "oneOf") if key in schema
    ):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
    }
    if schema.get("type") == "null":
        return value is None
    if "type" in schema and (
        not isinstance(value, kinds[schema["type"]])
        or isinstance(value, bool) != (schema["type"] == "boolean")
    ):
        return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if schema.get("additionalProperties") is False and set(value) - set(known):
            return False
        if set(schema.get("required", ())) - set(value):
            return False
        return all(fits(known[name], inner, whole) for name, inner in value.items() if name in known)
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return all(fits(schema["items"], inner, whole) for inner in value)
    return True


@pytest.mark.parametrize("example", examples.every(), ids=lambda each: f"{each.kind}/{each.name}")
def test_every_example_fits_the_schema_of_its_kind_and_a_misspelt_one_does_not(
    example: examples.Example,
) -> None:
    schema = reference.schema(example.kind)
    # What the reader of a file sees: 3:1 is a ratio and no number of base 60.
    value = json.loads(json.dumps(yaml.load(example.path.read_text(), _Loader)))
    assert fits(schema, value, schema)
    assert not fits(schema, {**value, "misspelt": 1}, schema)


from openmrc.fabric.yamlfile import _Loader  # noqa: E402


@pytest.mark.parametrize(
    ("command", "kind"), [("simulate", "Scenario"), ("plan", "fabric"), ("sweep", "grid"), ("job", "job")]
)
def test_the_command_line_prints_the_schema(
    command: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert kind.lower() in schema["title"].lower()
    assert schema["additionalProperties"] is False


def test_an_editor_is_told_what_every_field_means_and_its_range() -> None:
    for kind in ("scenario", "fabric", "grid", "job"):
        schema = reference.schema(kind)
        definitions = [schema, *schema.get("$defs", {}).values()]
        fields = [field for each in definitions for field in each.get("properties", {}).items()]
        assert [name for name, about in fields if name != "kind" and not about.get("description")] == []
    topology = reference.schema("scenario")["$defs"]["Topology"]["properties"]
    assert (topology["planes"]["minimum"], topology["planes"]["maximum"]) == (1, 16)
    flap = reference.schema("scenario")["$defs"]["Flap"]["properties"]
    assert flap["down_us"]["description"].endswith("Unit: us.")


@pytest.mark.parametrize("example", examples.every(), ids=lambda each: f"{each.kind}/{each.name}")
def test_every_example_is_written_whole_and_can_be_read(example: examples.Example, tmp_path: Path) -> None:
    assert main(["example", f"{example.kind}/{example.name}", "--out", str(tmp_path)]) == 0
    file = tmp_path / f"{example.name}.yaml"
    read = {"scenario": sim.load, "fabric": Fabric.load, "grid": sweeping.load, "job": jobs.load}[
        example.kind
    ]
    made = read(file)
    if example.kind == "scenario":
        sim.check.check(made)
    # Once more changes nothing; a file that its owner has changed stays.
    assert examples.write(f"{example.kind}/{example.name}", tmp_path)[0] == file
    file.write_text("mine")
    with pytest.raises(ArgumentError, match="is there already with other contents; --out names"):
        examples.write(f"{example.kind}/{example.name}", tmp_path)
    assert file.read_text() == "mine"


def test_an_example_is_written_beside_one_that_it_shares_a_file_with(tmp_path: Path) -> None:
    examples.write("lab", tmp_path)
    assert {path.name for path in examples.write("planned-fabric", tmp_path)} >= {"lab.yaml"}


def test_examples_are_listed_with_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"link-flap", "planned-fabric", "lab", "incast"} <= {each["name"] for each in listed}
    assert all(each["says"].endswith(".") and len(each["says"]) > 20 for each in listed)
    assert main(["example", "link-flop"]) != 0
    assert "did you mean link-flap?" in capsys.readouterr().err
