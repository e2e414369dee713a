"""What was named when: the comparison of injected faults with a controller's."""

import json

import pytest

from openmrc.localise import Component, Kind
from openmrc.operate.model import NamedFault, Suspect
from openmrc.operate.score import LINGERS_S, Injected, as_dict, score, summary
from tests.helpers.commands import one_line_error, run

LINK = Component(Kind.LINK, "p0/t0-1:up2--p0/t1-2")
OTHER = Component(Kind.LINK, "p0/t0-0:up1--p0/t1-1")
SWITCH = Component(Kind.SWITCH, "p0/t1-2")


def fault(kind, name, since, until=None, suspects=()):
    return NamedFault(
        id=1,
        kind=str(kind),
        name=name,
        since=since,
        until=until,
        confidence=1.0,
        loss=1.0,
        evidence_nats=99.0,
        paths=3,
        suspects=[
            Suspect(kind=str(c.kind), name=c.name, probability=0.5)
            for c in suspects or [Component(kind, name)]
        ],
        cost_bps=1.0,
    )


def rows(found):
    return [(row.injected.component, row.outcome, row.after_s) for row in found.rows]


def test_a_fault_that_is_named_while_it_lasts_is_right_and_every_other_name_is_wrong():
    made = [Injected(LINK, 1.0, 100.0, 120.0), Injected(SWITCH, 1.0, 200.0, 220.0)]
    found = score(
        made,
        [
            fault(Kind.LINK, LINK.name, 100.5, 122.0),
            fault(Kind.LINK, OTHER.name, 101.0, 103.0),
            fault(Kind.LINK, LINK.name, 201.0),
            fault(Kind.SWITCH, SWITCH.name, 202.0),
        ],
    )
    assert rows(found) == [(LINK, "right", 0.5), (SWITCH, "right", 2.0)]
    assert [(each.name, each.since) for each in found.wrong] == [(OTHER.name, 101.0), (LINK.name, 201.0)]
    assert "2 of 2 faults named rightly" in summary(found)
    assert "2 named wrongly" in summary(found)


def test_a_direction_of_a_link_is_the_link():
    found = score([Injected(Component(Kind.UPWARD, LINK.name), 1.0, 5.0)], [fault(Kind.LINK, LINK.name, 6.0)])
    assert [row.outcome for row in found.rows] == ["right"]
    assert found.wrong == []


def test_a_suspect_is_not_a_name_and_one_that_is_named_later_is_right():
    unknown = fault("unknown", LINK.name, 6.0, suspects=[OTHER, LINK])
    made = [Injected(LINK, 1.0, 5.0, 9.0)]
    assert rows(score(made, [unknown])) == [(LINK, "suspected", 1.0)]
    assert rows(score(made, [unknown, fault(Kind.LINK, LINK.name, 8.0)])) == [(LINK, "right", 3.0)]
    strange = fault("unknown", OTHER.name, 6.0, suspects=[OTHER, SWITCH])
    assert score(made, [strange]).wrong == [strange]


def test_what_is_named_long_after_the_repair_or_before_everything_does_not_count():
    made = [Injected(LINK, 1.0, 100.0, 120.0)]
    late = fault(Kind.LINK, LINK.name, 120.0 + LINGERS_S + 1)
    found = score(made, [fault(Kind.LINK, OTHER.name, 99.0), late])
    assert rows(found) == [(LINK, "missed", None)]
    assert found.wrong == [late]
    just = fault(Kind.LINK, LINK.name, 120.0 + LINGERS_S - 1)
    assert [row.outcome for row in score(made, [just]).rows] == ["right"]


def test_a_fault_that_still_lasts_is_not_missed():
    found = score([Injected(LINK, 0.01, 100.0)], [])
    assert [row.outcome for row in found.rows] == ["not yet"]
    assert "0 of 0" in summary(found)
    assert as_dict(found)["faults"][0]["after_s"] is None


def test_simulated_hosts_end_with_a_table_of_what_was_named():
    ended = run("controller", "--simulate", "--port", 0, "--seed", 4, "--duration", "15s", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.partition("\n")[2])
    assert len(found["faults"]) > 0
    assert {each["outcome"] for each in found["faults"]} <= {"right", "suspected", "missed", "not yet"}
    people = run("controller", "--simulate", "--port", 0, "--seed", 4, "--duration", "5s")
    assert "faults named rightly" in people.stdout


@pytest.mark.parametrize("option", [["--json"], ["--duration", "5s"]])
def test_options_of_the_simulation_need_it(option, tmp_path):
    assert "go with --simulate" in one_line_error(run("controller", tmp_path / "x.yaml", *option))
