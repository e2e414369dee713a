"""Scenarios as people write them: numbers with units, short texts for transports, patterns without a list."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmrc import sim, units
from openmrc.errors import ArgumentError, FormatError
from openmrc.reference import schema
from openmrc.sim.scenario.part import Part

LONG = """
topology: {hosts: 64, nic: {rate: 400G}, planes: 4, radix: 16}
network: {switch_latency_ns: 600}
transport: {kind: rocev2, qps: 8}
traffic:
  - {kind: permutation, bytes: 1048576, start_us: 10}
faults:
  - {kind: loss, targets: [fabric-links], at_us: 100, until_us: 1000, probability: 0.01}
"""
SHORT = """
topology: {hosts: 64, nic: {rate: 400G}, planes: 4, radix: 16}
network: {switch_latency_ns: 0.6us}
transport: "rocev2:qps=8"
traffic: {kind: permutation, bytes: 1M, start_us: 10us}
faults: {kind: loss, targets: [fabric-links], at_us: 0.1ms, until_us: 1 ms, probability: 1%}
"""


def read(tmp_path, text):
    (tmp_path / "s.yaml").write_text(text)
    return sim.load(tmp_path / "s.yaml")


def test_a_scenario_with_units_and_short_forms_is_the_one_without(tmp_path):
    assert read(tmp_path, SHORT).to_json() == read(tmp_path, LONG).to_json()


def test_what_is_written_as_yaml_is_read_again(tmp_path):
    scenario = read(tmp_path, SHORT)
    assert read(tmp_path, scenario.to_yaml()) == scenario


@pytest.mark.parametrize(
    ("found", "written", "error"),
    [
        ("bytes: 1M", "bytes: 1Q", "5: traffic.bytes: '1Q' is not a size"),
        ("bytes: 1M", "bytes: 1.3", "5: traffic.bytes: expected a whole number"),
        ("bytes: 1M", "bites: 1M", "5: traffic.bytes: this field is missing"),
        ("0.1ms", "'100'", "6: faults.at_us: '100' is not a time with a unit"),
        ("0.1ms", "-1ms", "6: faults.at_us: '-1ms' is not a time"),
        ("probability: 1%", "probability: '1'", "6: faults.probability: '1' is not clear"),
        ("rocev2:qps=8", "rocev2:qps", "4: transport: rocev2:qps: qps is not of the form field=value"),
        ("rocev2:qps=8", "rocev2:qps=1:qps=2", "4: transport: rocev2:qps=1:qps=2: qps is given twice"),
        ("rocev2:qps=8", "mrc:planes=1", "4: transport: mrc:planes=1: planes are the topology's here"),
        ("rocev2:qps=8", "rocev3", "4: transport: kind: rocev3 is none of mrc"),
    ],
)
def test_what_is_written_wrongly_is_named_with_its_line(tmp_path, found, written, error):
    with pytest.raises(FormatError) as raised:
        read(tmp_path, SHORT.replace(found, written))
    assert f"s.yaml:{error}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_every_number_with_a_unit_takes_a_text_and_the_schema_says_so():
    example = {"B": "4K", "us": "1ms", "ns": "1us", "bit/s": "1G", "share": "1%"}
    value = {"B": 4096, "us": 1000.0, "ns": 1000.0, "bit/s": 10**9, "share": 0.01}
    definitions = {"Scenario": schema("scenario"), **schema("scenario")["$defs"]}
    parts = [
        part for part in vars(sim.scenario).values() if isinstance(part, type) and issubclass(part, Part)
    ]
    seen = set()
    for part in parts:
        for name, field in part.model_fields.items():
            unit = units.unit_of_field(name)
            if unit in example and field.annotation in (int, float):
                about = definitions[part.__name__]["properties"][name]
                assert {"type": "string"} in about["anyOf"], (part, name)
                [read] = [each.func for each in field.metadata if hasattr(each, "func")]
                assert read(example[unit]) == pytest.approx(value[unit]), (part, name)
                seen.add(unit)
    assert seen == set(example)


@given(st.integers(0, 10**9), st.sampled_from(["ns", "us", "ms", "s"]))
def test_a_time_with_a_unit_is_the_number_in_the_unit_of_the_field(count, unit):
    read = units.parse_in("us")
    assert read(f"{count}{unit}") == pytest.approx(
        count * {"ns": 1e-3, "us": 1, "ms": 1e3, "s": 1e6}[unit], rel=1e-12, abs=1e-9
    )


def test_python_takes_the_same_texts():
    assert sim.Permutation(bytes="64KiB") == sim.Permutation(bytes=65536)
    with pytest.raises(ArgumentError, match="'64 furlongs' is not a size"):
        sim.Permutation(bytes="64 furlongs")
    assert json.loads(sim.Permutation(bytes="64kB").model_dump_json())["bytes"] == 64000
