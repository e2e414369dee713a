"""A planned fabric in a scenario: the file of `openmrc plan` as the topology of a run."""

from pathlib import Path

import pytest
import yaml

from openmrc import Error, _core, sim
from openmrc.fabric import Fabric
from openmrc.sim import check, transports
from tests.helpers.repository import ROOT

EXAMPLES = ROOT / "examples"
FABRICS = sorted((EXAMPLES / "fabrics").glob("*.yaml"))
TRAFFIC = [{"kind": "permutation", "bytes": 4096}]


def write(directory: Path, fabric: object, topology: object, **more: object) -> Path:
    (directory / "fabrics").mkdir(exist_ok=True)
    (directory / "fabrics" / "mine.yaml").write_text(yaml.safe_dump(fabric))
    file = directory / "scenario.yaml"
    file.write_text(yaml.safe_dump({"topology": topology, "traffic": TRAFFIC, **more}))
    return file


MINE = {
    "hosts": 40,
    "nic": {"rate": "400G"},
    "planes": 4,
    "switch": {"radix": 12},
    "tiers": 2,
    "hosts_per_t0": 6,
    "oversubscription": 2,
    "cables": {"host_t0": "20 m", "t0_t1": 50},
    "mtu": 2048,
}


@pytest.mark.parametrize("file", FABRICS, ids=lambda file: file.stem)
def test_a_simulated_fabric_is_the_planned_one_link_by_link(file: Path) -> None:
    planned = Fabric.load(file)
    scenario = sim.Scenario.model_validate({"topology": {"fabric": file}, "traffic": TRAFFIC})
    topology = scenario.topology
    assert (topology.hosts, topology.planes, topology.tiers) == (planned.hosts, planned.planes, planned.tiers)
    assert topology.port_rate == planned.size.port_rate
    assert topology.cables.t0_t1 == planned.spec.cables.t0_t1
    if planned.hosts > 2000:
        check.check(scenario)
        return
    simulation = _core.Simulation(check.check(scenario))
    links = [link for switch in planned.switches() for link in (p.link for p in planned.ports(switch))]
    assert set(simulation.link_names()) == set(links)


def test_the_file_is_found_beside_the_scenario_and_gives_rate_cables_and_mtu(tmp_path: Path) -> None:
    scenario = sim.load(write(tmp_path, MINE, {"fabric": "fabrics/mine.yaml"}))
    assert scenario.topology.port_rate == 100_000_000_000
    assert scenario.network.mtu == 2048
    results = sim.run(scenario)
    assert results.summary().delivered == 40
    # Cables of 20 and 50 m instead of 100.
    assert results.base_rtt_ps < 8_000_000
    plain = sim.load(write(tmp_path, MINE, {"hosts": 40, "planes": 4, "radix": 12}))
    assert sim.run(plain).base_rtt_ps > results.base_rtt_ps


def test_what_a_scenario_says_beside_the_file_has_to_be_the_same(tmp_path: Path) -> None:
    same = {"fabric": "fabrics/mine.yaml", "hosts": 40, "cables": {"host_t0": 20, "t0_t1": "50 m"}}
    same["cables"] |= {"t1_t2": 100, "t2_t3": 300}
    assert sim.load(write(tmp_path, MINE, same)).topology.planes == 4
    with pytest.raises(Error, match=r"scenario.yaml:\d+: topology: planes: mine.yaml says otherwise"):
        sim.load(write(tmp_path, MINE, {"fabric": "fabrics/mine.yaml", "planes": 8}))


@pytest.mark.parametrize(
    ("fabric", "name", "words"),
    [
        (MINE, "nowhere.yaml", r"nowhere.yaml: No such file"),
        ({**MINE, "planes": 7}, "fabrics/mine.yaml", r"does not break out into 7"),
        ({**MINE, "hostes": 7}, "fabrics/mine.yaml", r"mine.yaml:\d+: hostes: there is no such field"),
    ],
)
def test_a_file_that_is_no_fabric_is_refused_naming_both_files(
    tmp_path: Path, fabric: object, name: str, words: str
) -> None:
    with pytest.raises(Error, match=rf"scenario.yaml:\d+: topology: fabric: .*{words}"):
        sim.load(write(tmp_path, fabric, {"fabric": name}))


def test_a_planned_fabric_is_compared_on_one_plane_of_the_same_bandwidth(tmp_path: Path) -> None:
    scenario = sim.load(write(tmp_path, MINE, {"fabric": "fabrics/mine.yaml"}))
    single = transports.apply(scenario, "rocev2:qps=2:planes=1")
    assert (single.topology.planes, single.topology.port_rate) == (1, 400_000_000_000)
    assert sim.run(single).summary().delivered == 40


def test_a_report_has_a_scenario_that_needs_no_fabric_file(tmp_path: Path) -> None:

    scenario = sim.load(write(tmp_path, MINE, {"fabric": "fabrics/mine.yaml"}))
    again = sim.Scenario.model_validate(yaml.safe_load(scenario.to_yaml()))
    assert sim.run(again).totals == sim.run(scenario).totals
