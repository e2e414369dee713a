"""Values that are wrong, in programs and in files: one kind of exception, and every misspelt field."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import openmrc
from openmrc import sim
from openmrc.errors import ArgumentError, FormatError
from openmrc.fabric import Specification, catalogue
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


def test_every_misspelt_field_is_told_with_its_nearest_neighbour(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        sim.Scenario.model_validate(MISSPELT)
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(MISSPELT, sort_keys=False))
    with pytest.raises(FormatError) as read:
        sim.load(file)
    lines = file.read_text().splitlines()
    for place, neighbour in NEIGHBOURS.items():
        told = f"{place}: there is no such field, did you mean {neighbour}?"
        assert told in str(caught.value)
        assert told in str(read.value)
        key = place.rpartition(".")[2]
        line = 1 + next(number for number, text in enumerate(lines) if f"{key}:" in text)
        assert f":{line}: {told}" in str(read.value) or f"line {line}: {told}" in str(read.value)
    assert "more)" not in str(caught.value)


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
