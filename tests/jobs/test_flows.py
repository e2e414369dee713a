"""How much longer messages take, simulated at flow level: against packets, and with each state by itself."""

import json

import numpy as np
import pytest

from openmrc import jobs, sim
from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.jobs.draw import draw
from openmrc.jobs.effect import effect
from openmrc.jobs.flows import Flows
from openmrc.jobs.network import of_fabric
from openmrc.sim.scenario.network import topology_of
from tests.helpers.commands import run as openmrc
from tests.helpers.repository import ROOT

FABRICS = ROOT / "examples" / "fabrics"
SMALL = {"name": "small", "planes": 4, "port_lost": "slower", "reaction_s": [0.001, 0.01]}


def of(network, gpus, switch_tbps=51.2, flows=None):
    """The factors of a network, and its shape."""
    shape = network.shape(gpus, 800, switch_tbps)
    return (Flows() if flows is None else flows).of(network, shape, gpus), shape


def factor(factors, lost):
    return factors(np.array([float(lost)]))[0]


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_lost_port_costs_as_much_as_with_packets(lost):
    def time_us(*targets):
        scenario = {
            "topology": {"hosts": 64, "planes": 4, "radix": 16},
            "traffic": [{"kind": "permutation", "bytes": 16 << 20}],
            "faults": [{"kind": "down", "at_us": 0, "targets": targets}] if targets else [],
        }
        return sim.run(sim.Scenario.model_validate(scenario)).summary().last_us

    found, _ = of(jobs.Network.model_validate(SMALL), 64, 3.2)
    measured = time_us(*(f"h0:p{plane}" for plane in range(lost))) / time_us()
    assert factor(found, lost) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("seed", range(6))
def test_a_day_is_what_it_is_with_every_state_simulated_by_itself(seed):
    rates = {"link_hours": 3e3, "flap_days": 3.0, "host_days": 1e12, "nic_hours": 1e12}
    job = jobs.Job.model_validate(
        {"gpus": 128, "days": 1, "switch_tbps": 3.2, "networks": [SMALL], "rates": rates, "seed": seed}
    )
    network = job.networks[0]
    flows = Flows()
    found, shape = of(network, job.gpus, 3.2, flows)
    _, failures = draw(job, network, seed)

    def alone(ports):
        """Each state by itself, without what was simulated before."""
        numbers = np.rint(ports).astype(int).tolist()
        return np.array([factor(of(network, job.gpus, 3.2)[0], number) for number in numbers])

    kept = effect(job, network, shape, failures, seed, found)
    each = effect(job, network, shape, failures, seed, alone)
    np.testing.assert_array_equal(kept.speed, each.speed)
    assert len(kept.times) > 20 * len(flows)
    by_ratio = effect(job, network, shape, failures, seed)
    assert (kept.speed >= by_ratio.speed - 1e-9).all()
    assert (kept.speed > by_ratio.speed).any()
    assert (kept.speed <= 1).all()


def test_the_last_port_is_never_taken():
    flows = Flows()
    found, _ = of(jobs.Network.model_validate(SMALL | {"planes": 2}), 512, flows=flows)
    assert factor(found, 2) == factor(found, 1) > 1.5
    assert factor(found, 0) == 1
    assert len(flows) == 2


@pytest.mark.parametrize(("name", "gpus", "hosts"), [("pods", 30, 32), ("oversubscribed", 500, 504)])
def test_a_fabric_of_ones_own_is_simulated_with_its_own_links(name, gpus, hosts):
    fabric = Fabric.load(FABRICS / f"{name}.yaml")
    network = of_fabric(jobs.PRESETS["mrc"], fabric)
    found, _ = of(network, gpus, flows=Flows(fabric))

    def time_us(*targets):
        # The same fabric with whole T0s for so many hosts.
        scenario = {
            "topology": topology_of(Fabric.load(FABRICS / f"{name}.yaml", hosts=hosts)),
            "engine": "flow",
            "traffic": [{"kind": "permutation", "bytes": 64 << 20}],
            "faults": [{"kind": "down", "at_us": 0, "targets": targets}] if targets else [],
        }
        return sim.run(sim.Scenario.model_validate(scenario)).summary().last_us

    assert factor(found, 1) == pytest.approx(time_us("h0:p0") / time_us(), rel=1e-9)
    with pytest.raises(ArgumentError, match="only counted"):
        of(network, gpus)


def test_the_command_takes_flows_with_all_that_it_compares():
    wanted = ("--gpus", "1024", "--days", "2", "--networks", "mrc", "--seeds", "1", "--json")
    plain, flows = (json.loads(openmrc("job", *wanted, *more).stdout) for more in ((), ("--flows",)))
    assert flows["networks"][0]["effective"]["mean"] > plain["networks"][0]["effective"]["mean"]
    plain, flows = (
        json.loads(openmrc("job", *wanted, "--what-if", "--sensitivity", *more).stdout)
        for more in ((), ("--flows",))
    )
    for kind in ("what_if", "sensitivity"):
        assert plain[kind].keys() == flows[kind].keys()
        for text, [network] in plain[kind].items():
            assert flows[kind][text][0]["effective"]["mean"] > network["effective"]["mean"], text
    own = ("--fabric", str(FABRICS / "pods.yaml"), "--days", "300", *wanted[4:])
    plain, flows = (json.loads(openmrc("job", *own, *more).stdout) for more in ((), ("--flows",)))
    assert flows["networks"][0]["effective"]["mean"] > plain["networks"][0]["effective"]["mean"]
