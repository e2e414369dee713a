"""Examples for Slurm and Kubernetes, run as these run them, against a controller."""

import json
import os
import shlex
import subprocess

import pytest

from openmrc.fabric import Fabric
from openmrc.operate.model import Report
from tests.helpers.commands import OPENMRC
from tests.helpers.controllers import BOOT, agent, controller, seen
from tests.helpers.ends import eventually
from tests.helpers.labs import specification
from tests.helpers.repository import ROOT

SLURM = ROOT / "examples" / "slurm"
KUBERNETES = ROOT / "examples" / "kubernetes"
GOOD, BAD, WORSE, SILENT = "h0", "h4", "h8", "h12"
"""Under T0s of their own: two lost ports of one switch would be the switch."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A directory with openmrc, and a scontrol that notes its arguments."""
    where = tmp_path_factory.mktemp("bin")
    for name, line in (
        ("openmrc", f'exec {shlex.join(OPENMRC)} "$@"'),
        ("scontrol", f"printf '%s\\n' \"$@\" >> {where}/called; echo said"),
    ):
        (where / name).write_text(f"#!/bin/sh\n{line}\n")
        (where / name).chmod(0o755)
    return where


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A controller that has heard of a good, a degraded and a failed host of four; the reports stay fresh."""
    where = tmp_path_factory.mktemp("controller")
    file = specification(where, "scheduled", planes=4)
    fabric = Fabric.load(file)
    sequence = iter(range(1, 1 << 30))
    with controller(file, where / "c.db") as (running, _):

        def report():
            with agent(running, GOOD) as client:
                client.report(seen(fabric, GOOD, "h13", sequence=next(sequence)))
            for host, planes in ((BAD, [0]), (WORSE, [0, 1, 2])):
                with agent(running, host) as client:
                    client.report(Report(host=host, boot=BOOT, sequence=next(sequence), ports_down=planes))

        yield running, report


def started(script, address, programs, host, *arguments, **environment):
    file = programs / "environment"
    path = f"{programs}:{os.environ['PATH']}"
    file.write_text(f"OPENMRC_HOST={host}\nOPENMRC_CONTROLLER={address}\nPATH={path}\n")
    return subprocess.run(
        [script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"OPENMRC_ENVIRONMENT": str(file), "OPENMRC_HOST": host, "OPENMRC_CONTROLLER": address}
        | environment,
    )


def slurm(script, address, programs, host):
    """Exit code of a prolog or epilog as slurmd runs it, and what it asked scontrol for."""
    called = programs / "called"
    called.unlink(missing_ok=True)
    running, report = address
    report()
    done = started(SLURM / script, running, programs, host, SLURMD_NODENAME=f"node-{host}", SLURM_JOB_ID="7")
    # slurmd takes lines of it for the job's environment.
    assert done.stdout == ""
    return done.returncode, called.read_text().splitlines() if called.exists() else []


def test_slurm_drains_a_node_that_has_failed_and_requeues_its_job(address, programs):
    def failed():
        code, asked = slurm("openmrc-prolog.sh", address, programs, WORSE)
        return code == 1 and asked

    assert eventually(failed, 60)
    code, asked = slurm("openmrc-epilog.sh", address, programs, WORSE)
    assert code == 0
    assert asked[:3] == ["update", f"NodeName=node-{WORSE}", "State=DRAIN"]
    assert "no carrier on p0, p1, p2" in asked[3]
    assert asked[3].startswith("Reason=openmrc: ")


@pytest.mark.parametrize("host", [GOOD, BAD, SILENT])
def test_slurm_uses_a_node_that_is_good_degraded_or_unknown(host, address, programs):
    assert slurm("openmrc-prolog.sh", address, programs, host) == (0, [])


def test_slurm_uses_its_nodes_without_a_controller(programs):
    nobody = ("http://127.0.0.1:9", lambda: None)
    assert slurm("openmrc-prolog.sh", nobody, programs, WORSE) == (0, [])


def condition(which, address, programs, host):
    """Exit code and message of the plugin, as node-problem-detector takes them."""
    running, report = address
    report()
    path = f"{programs}:{os.environ['PATH']}"
    done = started(KUBERNETES / "openmrc-check.sh", running, programs, host, which, PATH=path)
    assert done.stdout.count("\n") == 1
    return done.returncode, done.stdout.strip()


def test_node_conditions_follow_the_verdicts(address, programs):
    assert eventually(lambda: condition("unusable", address, programs, WORSE)[0] == 1, 60)
    code, why = condition("degraded", address, programs, WORSE)
    assert code == 1
    assert "no carrier on p0, p1, p2" in why
    code, why = condition("degraded", address, programs, BAD)
    assert code == 1
    assert "no carrier on p0" in why
    assert condition("unusable", address, programs, BAD)[0] == 0
    for which in ("unusable", "degraded"):
        assert condition(which, address, programs, GOOD) == (0, "the fabric is good")
        assert condition(which, address, programs, SILENT) == (2, "its agent is not heard")
        code, why = condition(which, ("http://127.0.0.1:9", lambda: None), programs, GOOD)
        assert code == 2
        assert "cannot reach the controller" in why


def test_the_configuration_is_what_node_problem_detector_reads():
    """Fields of its CustomPluginConfig; a permanent rule sets a condition that has a default."""
    config = json.loads((KUBERNETES / "openmrc-fabric.json").read_text())
    assert set(config) == {"plugin", "pluginConfig", "source", "metricsReporting", "conditions", "rules"}
    assert config["plugin"] == "custom"
    known = {
        "invoke_interval",
        "timeout",
        "max_output_length",
        "concurrency",
        "enable_message_change_based_condition_update",
    }
    assert set(config["pluginConfig"]) <= known
    defaults = {each["type"] for each in config["conditions"]}
    for each in config["conditions"]:
        assert set(each) == {"type", "reason", "message"}
    for rule in config["rules"]:
        assert set(rule) == {"type", "condition", "reason", "path", "args", "timeout"}
        assert rule["type"] == "permanent"
        assert rule["condition"] in defaults
        name = rule["path"].rpartition("/")[2]
        assert os.access(KUBERNETES / name, os.X_OK)
        assert rule["reason"] not in {each["reason"] for each in config["conditions"]}
