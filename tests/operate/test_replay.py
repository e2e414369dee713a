"""Incidents of a controller, exported and replayed in the simulator."""

import json
import time

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import FormatError
from openmrc.fabric import Fabric, Specification
from openmrc.operate import incident as incidents
from openmrc.operate import replay
from openmrc.operate.incident import Fault, Incident
from openmrc.operate.linkmap import Topology
from openmrc.operate.model import Change
from openmrc.switchconf.render import resolved
from tests.helpers.commands import one_line_error, run
from tests.helpers.controllers import controller, report_all
from tests.helpers.labs import specification

SMALL = {
    "name": "small",
    "hosts": 16,
    "nic": {"rate": "200G"},
    "planes": 2,
    "switch": {"radix": 8},
    "tiers": 2,
}
LARGE = {**SMALL, "name": "large", "hosts": 1024, "switch": {"radix": 64}}
THREE = {**SMALL, "name": "three", "hosts": 1024, "switch": {"radix": 16}, "tiers": 3}


def fabric(shape):
    return Fabric(Specification.model_validate(shape))


def incident(shape=SMALL, kind="link", name="p1/t0-1:up0", **fields):
    made = fabric(shape)
    if kind in ("link", "upward", "downward"):
        name = Topology(made).link(name).name
    fault = {"id": 7, "kind": kind, "name": name, "since": 1000.0, "until": 1010.0, "confidence": 1.0}
    fault |= {"loss": 1.0, "paths": 4, "cost_bps": 1e11, **fields.pop("fault", {})}
    return Incident(exported=1100.0, fabric=resolved(made), fault=Fault(**fault), **fields)


def replayed(found):
    prepared = replay.prepare(found)
    return prepared, replay.seen(prepared, sim.run(prepared.scenario))


def test_a_broken_link_costs_paths_and_no_more_than_its_share():
    prepared, seen = replayed(incident())
    whole = replay.seen(prepared, sim.run(replay.without_fault(prepared)))
    assert seen.before_bps == whole.before_bps
    assert seen.condemned > 0 == whole.condemned
    assert seen.failed == 0
    assert 0.8 * whole.during_bps < seen.during_bps < whole.during_bps
    [down] = prepared.scenario.faults
    assert (down.kind, down.targets) == ("down", [prepared.component.name])
    assert prepared.end_us - prepared.begin_us == pytest.approx(prepared.length_us / 2)
    assert [part in prepared.remarks[0] for part in ("10.0 s", "us here")] == [True, True]


def test_a_link_that_loses_some_packets_loses_the_observed_share():
    prepared, seen = replayed(incident(fault={"loss": 0.02}))
    assert [(f.kind, f.probability) for f in prepared.scenario.faults] == [("loss", 0.02)]
    assert seen.resent > 0


@pytest.mark.parametrize(("kind", "loss"), [("upward", 1.0), ("downward", 0.05)])
def test_a_fault_of_one_direction_leaves_the_other_one_whole(kind, loss):
    prepared = replay.prepare(incident(kind=kind, fault={"loss": loss}))
    [fault] = prepared.scenario.faults
    assert (fault.kind, fault.direction, fault.probability) == ("loss", kind, loss)
    assert not any("direction" in remark for remark in prepared.remarks)
    recorded = prepared.scenario.model_copy(update={"record": sim.Record(ports=True)})
    links = sim.run(recorded).frames()["links"].to_pandas()
    lost = links[links["link"] == prepared.component.name].set_index("direction")["lost"]
    here, there = ("up", "down") if kind == "upward" else ("down", "up")
    assert lost[here] > 0 == lost[there]
    assert links["lost"].sum() == lost[here]


def test_a_flapping_link_fails_at_the_times_that_the_history_has():
    link = incident().fault.name
    states = [(1000, "broken"), (1002, "good"), (1004, "broken"), (1006, "unknown"), (1008, "good")]
    changes = [Change(time=at, link=link, evidence=what, decision="none") for at, what in states]
    prepared, _ = replayed(incident(changes=changes))
    spans = [(fault.at_us, fault.until_us) for fault in prepared.scenario.faults]
    unit = prepared.length_us / 2 / 8
    first = prepared.begin_us
    assert spans[0] == pytest.approx((first, first + 2 * unit))
    assert spans[1] == pytest.approx((first + 4 * unit, first + 8 * unit))


def test_many_flaps_are_cut_short_and_said_so():
    link = incident().fault.name
    changes = [
        Change(time=1000 + number / 20, link=link, evidence=("broken", "good")[number % 2], decision="none")
        for number in range(200)
    ]
    prepared = replay.prepare(incident(changes=changes))
    assert 1 <= len(prepared.scenario.faults) <= replay.MOST_TIMES
    assert "it failed 100 times; the first 32 are replayed" in prepared.remarks


def test_a_fault_that_is_open_lasts_to_the_end():
    prepared, seen = replayed(incident(fault={"until": None}))
    assert (prepared.end_us, seen.after_bps) == (None, None)
    assert prepared.scenario.faults[0].until_us is None


@pytest.mark.parametrize(
    ("kind", "name", "stands"),
    [
        ("link", "p1/t0-9:up3", "p1/t0-0:up"),
        ("link", "h100:p1", "h0:p1"),
        ("downward", "p1/t0-9:up3", "p1/t0-0:up"),
        ("switch", "p1/t1-5", "p1/t1-0"),
        ("switch", "p0/t0-9", "p0/t0-0"),
        ("host", "h1000", "h0"),
    ],
)
def test_a_large_fabric_is_scaled_down_and_the_component_keeps_its_place(kind, name, stands):
    prepared, seen = replayed(incident(LARGE, kind, name))
    assert prepared.scenario.topology.hosts == replay.SCALED_HOSTS
    assert prepared.scenario.topology.planes == 2
    assert str(prepared.component.kind) == kind
    assert prepared.component.name.startswith(stands)
    assert any("1,024 hosts" in remark for remark in prepared.remarks)
    assert seen.during_bps < seen.before_bps


def test_upper_links_of_three_tiers_are_replaced_by_links_of_two():
    top = next(
        link.name for link in Topology(fabric(THREE)).links.values() if link.lower.startswith("p0/t1-0")
    )
    prepared = replay.prepare(incident(THREE, "link", top))
    assert prepared.component.name.startswith("p0/t0-0:up")
    assert prepared.scenario.topology.tiers == 2


def test_of_several_suspects_the_most_probable_fails_and_is_named():
    links = [Topology(fabric(SMALL)).link(f"p0/t0-{number}:up0").name for number in range(2)]
    suspects = [
        {"kind": "link", "name": link, "probability": share}
        for link, share in zip(links, (0.4, 0.6), strict=True)
    ]
    prepared = replay.prepare(incident(kind="unknown", name=links[0], fault={"suspects": suspects}))
    assert prepared.component.name == links[1]
    assert "suspected 2 components" in prepared.remarks[0]


def test_the_scenario_can_be_simulated_by_itself(tmp_path):
    file, out = tmp_path / "incident.json", tmp_path / "scenario.yaml"
    file.write_text(incident().model_dump_json())
    done = run("replay", file, "--out", out)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if "Gbit/s a host" in line] == [
        "goodput"
    ] * 3
    found = json.loads(run("replay", file, "--json").stdout)
    assert found["simulated"]["condemned"] > found["without_fault"]["condemned"] == 0
    assert found["observed"]["id"] == 7
    alone = json.loads(run("simulate", out, "--json").stdout)
    assert alone["totals"]["condemned"] == found["simulated"]["condemned"]


def test_an_optic_fails_with_all_of_its_links():
    cages = {**SMALL["switch"], "cages": SMALL["switch"]["radix"] // 2}
    shape = {**SMALL, "switch": cages}
    prepared = replay.prepare(incident(shape, "group", "p1/t0-1:up0-up1"))
    assert prepared.scenario.faults[0].targets == [
        Topology(fabric(shape)).link(f"p1/t0-1:up{number}").name for number in range(2)
    ]
    with pytest.raises(FormatError, match=r"no part of a smaller fabric stands for the optic p1/t0-1:up0"):
        replay.prepare(incident(LARGE, "group", "p1/t0-1:up0-up1"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d["fault"].pop("since"), "fault.since: Field required"),
        (lambda d: d["fault"].update(since="x"), "fault.since: "),
        (lambda d: d["fault"].update(since=float("nan")), "fault.since: "),
        (lambda d: d["fault"].update(until=1.0), "fault.until: 1.0 is before fault.since"),
        (lambda d: d["fault"].update(loss=2.0), "fault.loss: "),
        (lambda d: d["fault"].update(kind="gremlin"), "fault.kind: "),
        (lambda d: d["fault"].update(name="p9/t0-0:up0"), "fault.name: fabric small has no link p9/t0-0:up0"),
        (lambda d: d["fault"].update(kind="unknown"), "fault.suspects: "),
        (lambda d: d["fault"].update(kind="group"), "fault.name: fabric small has no group p1/t0-1:up0"),
        (lambda d: d.update(fabric="name: [x"), "fabric"),
        (lambda d: d.update(fabric="name: x\nhosts: 16\n"), "fabric"),
        (lambda d: d.update(openmrc_incident=2), "openmrc_incident: "),
        (lambda d: d.update(changes=[{"time": 1}]), "changes.0.link: Field required"),
        (lambda d: d.update(decisions=[3]), "decisions.0: "),
    ],
)
def test_a_malformed_incident_is_one_line_that_names_the_field(tmp_path, change, told):
    found = json.loads(incident().model_dump_json())
    change(found)
    file = tmp_path / "incident.json"
    file.write_text(json.dumps(found))
    assert one_line_error(run("replay", file)).startswith(f"error: {file}: ")
    with pytest.raises(FormatError) as raised:
        replay.prepare(incidents.parse(file.read_text(), "file"))
    assert told in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\ud800".encode("utf-8", "surrogatepass")])
def test_what_is_no_incident_is_refused_in_one_line(tmp_path, text, capsys):
    file = tmp_path / "incident.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["replay", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_controllers_fault_is_exported_and_replayed(tmp_path):
    file = specification(tmp_path, "exported")
    made = Fabric.load(file)
    broken = Topology(made).link("p0/t0-0:up1").name
    pairs = [(f"h{number}", f"h{(number + 4) % 16}") for number in range(16)]
    with controller(file, tmp_path / "a.db", token=True) as (address, _):
        found = []
        until = time.monotonic() + 120
        # Reports come one after the other: between two, another may be suspected.
        while [each["name"] for each in found] != [broken]:
            assert time.monotonic() < until
            report_all(address, made, pairs, [broken])
            done = run("fabric", "faults", "--json", "--controller", address)
            found = json.loads(done.stdout)
        # The history of links is written a little later.
        history = []
        while not history:
            assert time.monotonic() < until
            out = tmp_path / "incident.json"
            done = run("fabric", "incident", found[0]["id"], "--out", out, "--controller", address)
            assert done.returncode == 0, done.stderr
            exported = json.loads(out.read_text())
            history = [each["evidence"] for each in exported["changes"] if each["link"] == broken]
        assert "broken" in history
        assert "the controller has no fault 99;" in one_line_error(
            run("fabric", "incident", 99, "--controller", address)
        )
    done = run("replay", out)
    assert done.returncode == 0, done.stderr
    assert f"link {broken}" in done.stdout
