"""How much longer messages take, simulated at flow level: against packets, and with each state by itself."""

import json

import numpy as np
import pytest

from openmrc import jobs, sim
from openmrc.errors import ArgumentError
from openmrc.jobs.draw import draw
from openmrc.jobs.effect import effect
from openmrc.jobs.flows import Slowdowns
from tests.helpers.commands import run as openmrc

SMALL = {"name": "small", "planes": 4, "port_lost": "slower", "reaction_s": [0.001, 0.01]}


def of(network, gpus, switch_tbps=51.2):
    shape = network.shape(gpus, 800, switch_tbps)
    return Slowdowns(network, shape, gpus), shape


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
    assert found.factor(lost) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("seed", range(6))
def test_a_day_is_what_it_is_with_every_state_simulated_by_itself(seed):
    rates = {"link_hours": 3e3, "flap_days": 3.0, "host_days": 1e12, "nic_hours": 1e12}
    job = jobs.Job.model_validate(
        {"gpus": 128, "days": 1, "switch_tbps": 3.2, "networks": [SMALL], "rates": rates, "seed": seed}
    )
    network = job.networks[0]
    found, shape = of(network, job.gpus, 3.2)
    _, failures = draw(job, network, seed)

    def alone(ports):
        """Each state by itself, without what was simulated before."""
        numbers = np.rint(ports).astype(int).tolist()
        return np.array([of(network, job.gpus, 3.2)[0].factor(number) for number in numbers])

    kept = effect(job, network, shape, failures, seed, found.factors)
    each = effect(job, network, shape, failures, seed, alone)
    np.testing.assert_array_equal(kept.speed, each.speed)
    assert len(kept.times) > 20 * len(found)
    by_ratio = effect(job, network, shape, failures, seed)
    assert (kept.speed >= by_ratio.speed - 1e-9).all()
    assert (kept.speed > by_ratio.speed).any()
    assert (kept.speed <= 1).all()


def test_the_last_port_is_never_taken():
    found, _ = of(jobs.Network.model_validate(SMALL | {"planes": 2}), 512)
    assert found.factor(2) == found.factor(1) > 1.5
    assert found.factor(0) == 1
    assert len(found) == 2


def test_the_command_says_what_goes_together():
    wanted = ("--gpus", "1024", "--days", "2", "--networks", "mrc", "--seeds", "1", "--json")
    plain, flows = (json.loads(openmrc("job", *wanted, *more).stdout) for more in ((), ("--flows",)))
    assert flows["networks"][0]["effective"]["mean"] > plain["networks"][0]["effective"]["mean"]
    for more in (("--what-if",), ("--sensitivity",), ("--fabric", "x.yaml")):
        refused = openmrc("job", "--flows", *more)
        assert refused.returncode == 2
        assert "--flows goes without" in refused.stderr
    parts = jobs.network.Parts(
        nics=8, tiers=1, radix=8, nics_per_t0=8, uplinks_per_t0=0, upper_links=0, uppers=0
    )
    own = jobs.PRESETS["mrc"].model_copy(update={"parts": parts})
    with pytest.raises(ArgumentError, match="only counted"):
        of(own, 8)
