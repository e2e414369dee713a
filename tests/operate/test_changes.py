"""Changes of paths are counted once, whatever happens to reports, agents, devices and controllers."""

import httpx
from hypothesis import given
from hypothesis import strategies as st

from openmrc.fabric import Fabric
from openmrc.operate.changes import Changes
from openmrc.operate.linkmap import Map, Topology
from openmrc.operate.model import MOST_PATHS, Report
from tests.helpers.controllers import agent, controller, operator, seen

BOOT = "0123456789abcdef"
FILE = "name: changes\nhosts: 8\nnic: {rate: 200G}\nplanes: 2\nswitch: {radix: 8}\ntiers: 2\n"


def fabric_in(directory):
    file = directory / "changes.yaml"
    file.write_text(FILE)
    return file, Fabric.load(file)


def test_what_devices_count_is_told_until_the_controller_has_it_once():
    changes = Changes()
    changes.see({"a": [], "b": []})
    changes.see({"a": [((1, 5, 70), 2), ((2, 5, 70), 1)], "b": [((1, 6, 71), 4)]})
    first = changes.due()
    assert sorted(first) == [(5, 70, 3), (6, 71, 4)]
    assert changes.due() == first, "nobody has taken it yet"
    changes.see({"a": [((1, 5, 70), 3), ((2, 5, 70), 1)], "b": [((1, 6, 71), 4)]})
    changes.told(first)
    assert changes.due() == [(5, 70, 4)], "it changed while the first report was on its way"
    # A queue pair whose number another had counts from the beginning; a device that has gone is forgotten.
    changes.see({"a": [((1, 5, 70), 1), ((2, 5, 70), 1)]})
    assert changes.due() == [(5, 70, 5)]
    changes.see({})
    changes.see({"b": [((1, 6, 71), 1)]})
    assert sorted(changes.due()) == [(5, 70, 5), (6, 71, 5)]


def test_an_agent_that_starts_again_or_waits_for_a_device_counts_nothing_twice():
    changes = Changes()
    changes.see({"a": [((1, 5, 70), 100)]})
    assert changes.due() == [], "an agent before this one may have told them"
    changes.see({"a": [((1, 5, 70), 103)]})
    changes.see({})
    changes.see({"a": [((1, 5, 70), 104)]})
    assert changes.due() == [(5, 70, 4)]


def test_more_changes_than_a_report_has_come_with_the_next():
    changes = Changes()
    changes.see({"a": []})
    changes.see({"a": [((1, peer, 0), 1) for peer in range(MOST_PATHS + 7)]})
    first = changes.due()
    changes.told(first)
    rest = changes.due()
    assert (len(first), len(rest)) == (MOST_PATHS, 7)
    assert len({*first, *rest}) == MOST_PATHS + 7


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from(["taken", "unanswered", "lost"])),
        min_size=1,
        max_size=30,
    )
)
def test_reports_that_are_lost_or_come_twice_change_no_count(steps, tmp_path_factory):
    _, fabric = fabric_in(tmp_path_factory.mktemp("changes"))
    paths = [(4, path.ev, path) for path in list(fabric.paths("h0", "h4"))[:4]]
    controller_map, changes = Map(Topology(fabric)), Changes()
    device = dict.fromkeys(range(4), 0)
    changes.see({"d": []})
    for sequence, (place, times, outcome) in enumerate((*steps, (0, 0, "taken")), 1):
        device[place] += times
        changes.see({"d": [((1, *paths[each][:2]), count) for each, count in device.items() if count]})
        due = changes.due()
        report = Report(host="h0", boot=BOOT, sequence=sequence, changes=due)
        # The first one must arrive: what an agent counted before is not this controller's.
        if sequence == 1 or outcome != "lost":
            assert controller_map.take(report, sequence, sequence)
        if outcome == "taken":
            assert not controller_map.take(report, sequence, sequence)
            changes.told(due)
    assert controller_map.changes == sum(device.values())
    for link in fabric_links(paths):
        over = sum(count for each, count in device.items() if link in paths[each][2].links)
        assert controller_map.path_changes[link] == over


def fabric_links(paths):
    return {link for *_, path in paths for link in path.links}


def test_a_controller_that_starts_later_counts_what_changes_from_then_on(tmp_path):
    file, fabric = fabric_in(tmp_path)
    path, other, *_ = fabric.paths("h0", "h4")
    with (
        controller(file, tmp_path / "c.db") as (address, _),
        agent(address, "h0") as client,
        operator(address) as asking,
    ):

        def report(sequence, boot=BOOT, *rows):
            client.report(
                seen(fabric, "h0", "h4", sequence=sequence).model_copy(
                    update={"boot": boot, "changes": list(rows)}
                )
            )
            found = httpx.get(f"{address}/metrics", trust_env=False).text
            total = next(
                line for line in found.splitlines() if line.startswith("openmrc_fabric_path_changes_total")
            )
            return float(total.split()[1])

        assert report(7, BOOT, (4, path.ev, 50)) == 0
        assert report(8, BOOT, (4, path.ev, 52)) == 2
        assert report(9, BOOT, (4, other.ev, 9)) == 2, "9 may have been counted before"
        assert report(10, BOOT, (4, other.ev, 10)) == 3
        assert report(1, "f" * 16, (4, path.ev, 5)) == 8, "an agent that has just started counts from 0"
        shared = {*path.links} & {*other.links}
        assert asking.link(next(iter({*path.links} - shared))).path_changes == 7
        assert asking.link(next(iter(shared))).path_changes == 8


def test_reports_are_described_and_are_posts(tmp_path):
    file, _ = fabric_in(tmp_path)
    with controller(file, tmp_path / "c.db") as (address, _):
        refused = httpx.get(f"{address}/api/v1/reports", trust_env=False)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        described = httpx.get(f"{address}/api/v1/openapi.json", trust_env=False).json()
        schema = described["paths"]["/api/v1/reports"]["post"]["requestBody"]["content"]["application/json"]
        assert "changes" in schema["schema"]["properties"]
