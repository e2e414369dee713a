"""``openmrc validate``: verdicts for the hosts and links of a job, in three forms, and an exit code."""

import json

import pytest

from openmrc.cli.validate import _markdown
from openmrc.fabric import Fabric
from openmrc.operate.linkmap import Map, Topology
from openmrc.operate.model import Evidence, HostVerdict, LinkVerdict, Validation
from openmrc.operate.validate import validate
from tests.helpers.commands import PATIENCE, one_line_error, run
from tests.helpers.controllers import controller, report_all, seen
from tests.helpers.ends import eventually
from tests.helpers.labs import RING, specification

PAIRS = list(zip(RING, RING[1:] + RING[:1], strict=True))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return specification(tmp_path_factory.mktemp("fabric"), "validated")


@pytest.fixture(scope="module")
def fabric(file):
    return Fabric.load(file)


def test_exit_codes_are_pass_degraded_fail_and_unknown(file, fabric, tmp_path, monkeypatch):
    cables = [path.links[0] for path in fabric.paths("h0", "h4")]
    uplink = fabric.paths("h8", "h12")[0].links[1]
    with controller(file, tmp_path / "c.db") as (address, _):
        monkeypatch.setenv("OPENMRC_CONTROLLER", address)

        def printed(hosts, code, form, broken=(), **fields):
            """What the command prints once it has this exit code: a report is good for seconds only."""
            found = []

            def is_so():
                report_all(address, fabric, PAIRS, broken, **fields)
                result = run("validate", "--hosts", hosts, form)
                found.append(result.stdout)
                return result.returncode == code

            assert eventually(is_so, PATIENCE)
            return found[-1]

        def answers(hosts, code, broken=(), **fields):
            return json.loads(printed(hosts, code, "--json", broken, **fields))

        passed = answers("h0,h4,h8", 0)
        assert passed["verdict"] == "pass"
        assert passed["links"] == []
        # Two planes, four uplinks of each of three T0s, and the cables of three hosts.
        assert sum(passed["link_counts"].values()) == 2 * (4 * 3 + 3)
        degraded = answers("h8", 3, [uplink])
        assert [each["link"] for each in degraded["links"] if each["verdict"] == "fail"] == [uplink]
        failed = answers("h0", 4, sorted(set(cables)), ports_down=[])
        assert failed["hosts"][0]["verdict"] == "fail"
        # h2 has no agent.
        unknown = answers("h2,h4", 5, [])
        assert [each["verdict"] for each in unknown["hosts"]] == ["unknown", "pass"]
        shown = printed("h4", 0, "--markdown").splitlines()
        assert shown[0].startswith("**pass**: 1 hosts; links: ")
        assert shown[2:4] == ["| Host | Verdict | Reasons |", "| --- | --- | --- |"]
    nobody = run("validate", "--hosts", "h0")
    assert nobody.returncode == 5
    assert "cannot reach the controller" in one_line_error(nobody)


def test_wrong_arguments_have_a_code_that_is_no_verdict():
    for wrong in (["--hosts", "h5-h2"], ["--hosts", "node7"], [], ["--hosts", "h0", "--json", "--markdown"]):
        assert run("validate", *wrong).returncode == 2, wrong


def test_one_of_several_suspects_makes_its_host_unknown_and_not_failed(fabric):
    fabric_map = Map(Topology(fabric))
    for host in ("h0", "h4"):
        fabric_map.take(seen(fabric, host, "h8"), 1.0, 1.0)
    _, fabric_map.evidence = fabric_map.evaluate(fabric_map.collect(1.0, 5.0))
    suspect = fabric_map.topology.groups["h0"][0]
    fabric_map.evidence[suspect] = Evidence.SUSPECT
    found = validate(fabric_map, ["h0", "h4"], [], 1.0, 5.0)
    assert [each.verdict for each in found.hosts] == ["unknown", "pass"]
    assert found.hosts[0].reasons == [f"packets are lost, perhaps by {suspect}"]
    assert [(each.link, each.verdict) for each in found.links] == [(suspect, "unknown")]


def test_text_of_a_controller_is_no_markup():
    evil = "x | y <b> `c` [d](e)\n# f"
    found = Validation(
        verdict="fail",
        hosts=[HostVerdict(host=evil, verdict="fail", reasons=[evil])],
        links=[LinkVerdict(link=evil, verdict="fail", evidence="broken", decision="none", loss=0.5)],
        link_counts={"fail": 1},
    )
    lines = _markdown(found).splitlines()
    assert not any(line.startswith("#") for line in lines)
    for line in lines[4:5] + lines[8:9]:
        assert line.count("|") - line.count("\\|") == 4
        assert "<b>" not in line
        assert "fail" in line
