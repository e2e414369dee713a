"""A job on a fabric that is there: its planes, links and switches, from its file or configurations."""

import json

import pytest

from openmrc import jobs
from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.jobs.network import of_fabric
from tests.helpers.commands import run as openmrc
from tests.helpers.repository import ROOT

FABRICS = ROOT / "examples" / "fabrics"


def shape_on(name, gpus=None):
    fabric = Fabric.load(FABRICS / f"{name}.yaml")
    return fabric, of_fabric(jobs.PRESETS["mrc"], fabric).shape(gpus or fabric.hosts, 800, 51.2)


def test_the_reference_fabric_has_the_parts_of_the_design_without_oversubscription():
    assert shape_on("reference")[1] == jobs.PRESETS["mrc"].shape(131072, 800, 51.2)


@pytest.mark.parametrize("name", ["lab", "oversubscribed", "pods", "reference"])
def test_its_links_and_switches_are_those_of_the_plan(name):
    fabric, shape = shape_on(name)
    first, *above = fabric.core.switches_per_tier
    assert (shape.planes, shape.tiers, shape.radix) == (fabric.planes, fabric.tiers, fabric.radix)
    assert (shape.t0s, shape.uppers) == (first * fabric.planes, sum(above) * fabric.planes)
    assert shape.t0s + shape.uppers == fabric.switch_count
    assert shape.host_links == fabric.core.links_per_layer[0] * fabric.planes
    assert shape.fabric_links == sum(fabric.core.links_per_layer[1:]) * fabric.planes


def test_a_small_job_on_a_large_fabric_uses_the_t0s_that_it_is_on():
    fabric, whole = shape_on("reference")
    _, part = shape_on("reference", fabric.hosts // 2)
    assert part.t0s == whole.t0s // 2
    assert part.fabric_links == whole.fabric_links // 2
    assert part.uppers == whole.uppers
    with pytest.raises(ArgumentError, match="its fabric connects 131,072 NICs, not 131,080"):
        shape_on("reference", 131080)


def test_fewer_uplinks_make_the_loss_of_one_dearer():
    never = dict.fromkeys(("host_days", "nic_hours", "flap_days", "switch_hours"), 1e12)
    described = jobs.Job.model_validate(
        {"gpus": 64, "days": 300, "networks": ["mrc"], "step": {"exposed": 0.9}}
        | {"rates": never | {"link_hours": 2e4}}
    )
    fabric = Fabric.load(FABRICS / "pods.yaml")
    many = of_fabric(described.networks[0], fabric)
    assert many.parts is not None
    few = many.model_copy(
        update={"parts": many.parts.model_copy(update={"uplinks_per_t0": many.parts.uplinks_per_t0 // 2})}
    )
    lost = [jobs.run(described, each, 3).lost[jobs.Cause.FABRIC_LINKS].sum() for each in (many, few)]
    assert lost[1] > lost[0]


def test_configurations_stand_for_their_fabric_only_if_they_are_right(tmp_path):
    done = openmrc("config", FABRICS / "lab.yaml", "--platform", "frr", "-o", tmp_path / "configs")
    assert done.returncode == 0, done.stderr
    few = ("--days", "30", "--seeds", "1", "--json")
    by_file, by_configs = (
        openmrc("job", "--fabric", fabric, *few) for fabric in (FABRICS / "lab.yaml", tmp_path / "configs")
    )
    assert by_file.returncode == 0, by_file.stderr
    found = json.loads(by_file.stdout)
    assert found == json.loads(by_configs.stdout)
    assert found["networks"][0]["shape"]["planes"] == 4
    broken = next((tmp_path / "configs").rglob("frr.conf"))
    broken.write_text("\n".join(broken.read_text().splitlines()[:-8]))
    refused = openmrc("job", "--fabric", tmp_path / "configs", *few)
    assert refused.returncode != 0
    assert "`openmrc verify" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert openmrc("job", "--fabric", tmp_path / "none.yaml").returncode != 0
