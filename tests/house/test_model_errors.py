"""Values that are wrong, in programs and in files: one kind of exception, and every misspelt field."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

import openmrc
from openmrc import sim
from openmrc.errors import ArgumentError, FormatError
from openmrc.fabric import Specification, catalogue, yamlfile
from openmrc.sim.sweep import Grid

SCENARIO: dict[str, Any] = {
    "topology": {"hosts": 16, "planes": 2, "radix": 8},
    "traffic": [{"kind": "permutation", "bytes": 1000}],
}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: sim.Topology(hosts=1, radix=8), r"^hosts: 1 is out of range: 2 to"),
        (lambda: sim.Topology(hosts="many", radix=8), r"^hosts: "),
        (lambda: sim.Mrc(mpr=0), r"^mpr: 0 is out of range"),
        (lambda: sim.Topology.model_validate({"hosts": 4}), r"^radix: this field is missing"),
        (lambda: sim.Topology(), r"^hosts: this field is missing; radix: this field is missing$"),
        (lambda: sim.Scenario.model_validate({**SCENARIO, "limit": 3}), r"limit_us\?"),
        (lambda: sim.Scenario.model_validate_json("{"), r"JSON"),
        (lambda: Specification(hosts=4, nic={"rate": 5}, planes=1, switch={"radix": 4}), r"^nic\.rate: "),
        (lambda: catalogue.Catalogue(name="", currency="USD", switches=[]), r"^name: "),
        (lambda: Grid(base=SCENARIO, axes={}, seeds=[]), r"seeds: "),
    ],
)
def test_a_wrong_value_raises_an_error_of_openmrc_that_is_a_value_error(make: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        make()
    assert isinstance(caught.value, openmrc.Error)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


MISSPELT = {
    "topolgy": SCENARIO["topology"],
    "topology": {**SCENARIO["topology"], "host_per_t0": 4, "nic": {"rat": "400G", "rate": "400G"}},
    "network": {"switch": {"ecn_mim": 0.1}, "mtu": 1024},
    "transport": {"kind": "rocev2", "qp": 4},
    "traffic": [{"kind": "incast", "senders": [1], "reciever": 0, "receiver": 0, "bytes": 9}],
    "faults": [{"kind": "down", "target": ["links"], "targets": ["links"]}],
}
NEIGHBOURS = {
    "topolgy": "topology",
    "topology.host_per_t0": "hosts_per_t0",
    "topology.nic.rat": "rate",
    "network.switch.ecn_mim": "ecn_min",
    "transport.qp": "qps",
    "traffic.0.reciever": "receiver",
    "faults.0.target": "targets",
}


def without(fields: Any, place: str) -> None:
    """Removes a field from a scenario."""
    *way, last = place.split(".")
    for part in way:
        fields = fields[int(part)] if isinstance(fields, list) else fields[part]
    del fields[last]


def test_misspelt_fields_are_told_with_their_nearest_neighbours_three_at_a_time(tmp_path: Path) -> None:
    left, told, scenario = dict(NEIGHBOURS), 0, copy.deepcopy(MISSPELT)
    file = tmp_path / "scenario.yaml"
    while left:
        with pytest.raises(ArgumentError) as caught:
            sim.Scenario.model_validate(scenario)
        file.write_text(yaml.safe_dump(scenario, sort_keys=False))
        with pytest.raises(FormatError) as read:
            sim.load(file)
        named = [place for place in left if f"{place}: there is no such field" in str(caught.value)]
        assert len(named) == min(3, len(left))
        lines = file.read_text().splitlines()
        for place in named:
            text = f"{place}: there is no such field, did you mean {left.pop(place)}?"
            assert text in str(caught.value)
            key = place.rpartition(".")[2]
            line = 1 + next(number for number, shown in enumerate(lines) if f"{key}:" in shown)
            assert f":{line}: {text}" in str(read.value) or f"line {line}: {text}" in str(read.value)
            without(scenario, place)
            told += 1
        assert ("more)" in str(caught.value)) == bool(left)
    assert told == len(NEIGHBOURS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hosts: many\nnic: 800G\nplanes: 8\nswitch: 51T\n", "hosts: expected a whole number, such as 16; "),
        (
            "hosts: 4\nnic: 800G\nplanes: 1\nswitch: {radix: 4}\n",
            r"nic: write \{rate: 800G\}$",
        ),
        (
            "hosts: 4\nnic: fast\nplanes: 1\nswitch: 51.2T\n",
            r"nic: expected fields, such as \{rate: \.\.\.\}; line 4: switch: write \{capacity: 51\.2T\}$",
        ),
        ("hosts: 0\nnic: {rate: 800G}\nplanes: 1\nswitch: {radix: 4}\n", "hosts: must be at least "),
        ("topology: {}\ntraffic: []\n", "this is a scenario file; a fabric file is expected here$"),
        ("base: {}\naxes: {}\n", "this is a grid file; a fabric file is expected here$"),
    ],
)
def test_a_file_is_refused_in_words_of_files(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text(text)
    with pytest.raises(FormatError, match=words) as caught:
        openmrc.fabric.Fabric.load(file)
    assert "Input should" not in str(caught.value)


def test_the_kinds_of_files_are_told_apart_by_fields_that_they_have() -> None:
    models = {"fabric": Specification, "scenario": sim.Scenario, "grid": Grid}
    for (kind, fields), other in itertools.product(yamlfile.KINDS.items(), models):
        assert set(fields).issubset(models[other].model_fields) == (kind == other)


def test_a_field_that_is_like_no_other_is_told_with_the_fields_there_are(tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text("hosts: 4\nnic: {rate: 100G, colour: red}\nplanes: 1\nswitch: {radix: 4}\n")
    with pytest.raises(FormatError, match=r":2: nic\.colour: there is no such field; there are rate"):
        openmrc.fabric.Fabric.load(file)


class Window:
    def __init__(self, mtu: int, rate_bps: int, base_rtt_ps: int) -> None:
        self.window = 8.0 * mtu

    def on_sack(self, now_ps: int, newly: int, rtt_ps: int | None, ecn: bool) -> None:
        self.window = self.next

    def on_trim(self, now_ps: int, size: int) -> None: ...

    def on_loss(self, now_ps: int, size: int) -> None: ...


@pytest.mark.parametrize("window", [float("nan"), float("inf"), -1.0])
def test_a_window_that_is_no_number_of_bytes_ends_the_run(window: float) -> None:
    made = type("Own", (Window,), {"next": window})
    with pytest.raises(ArgumentError, match=r"window: .* is not a number of bytes"):
        sim.run(sim.Scenario.model_validate(SCENARIO), congestion=made)
