"""What MRC's connections do beside sending, as a scenario asks for it and results tell it."""

import json
from typing import Any

import pytest

from openmrc import sim
from openmrc.errors import ArgumentError
from openmrc.sim.text import headline

HOSTS = 16


def run(transport: dict[str, Any], **fields: Any) -> sim.Results:
    value = {
        "topology": {"hosts": HOSTS, "planes": 2, "radix": 16},
        "transport": {"kind": "mrc", **transport},
        "traffic": [{"kind": "permutation", "bytes": 200_000}],
        **fields,
    }
    return sim.run(sim.Scenario.model_validate(value))


def test_nothing_of_it_is_counted_or_shown_by_default() -> None:
    results = run({})
    assert set(results.life.values()) == {0}
    names = [name for name, _ in headline(results)]
    assert not [name for name in names if "MTU" in name or "lingering" in name or "receive" in name]


def test_a_host_with_a_narrow_port_is_refused_and_the_log_names_the_plane() -> None:
    narrow = {"kind": "mtu", "targets": ["h3:p1"], "bytes": 1500}
    results = run({"prove_mtu": True}, faults=[narrow], record={"events": True})
    assert (results.life["mtu_proofs"], results.life["mtu_refused"]) == (HOSTS, 2)
    refused = [event for event in results.log if event.kind == "mtu-refused"]
    assert {event.where for event in refused} == {"planes 1"}
    assert all(3 in (event.host, event.peer) for event in refused)
    fault = next(event for event in results.log if event.kind == "mtu")
    assert (fault.value, fault.time_us) == (1500, 0)
    assert results.summary().delivered == HOSTS - 2
    assert ("path MTU, proofs / refused", "16 / 2") in headline(results)


def test_without_a_proof_messages_find_their_way_around_a_narrow_link() -> None:
    narrow = {"kind": "mtu", "targets": ["p1/t1-0"], "bytes": 1500}
    results = run({}, faults=[narrow], traffic=[{"kind": "permutation", "bytes": 4_000_000}])
    assert results.summary().delivered == HOSTS
    assert results.totals["dropped_lossy"] > 0
    assert results.totals["condemned"] > 0


def test_destroyed_queue_pairs_answer_late_retransmissions() -> None:
    lossy = {"kind": "loss", "targets": ["links"], "probability": 0.1}
    results = run({"linger": True}, faults=[lossy], seed=2)
    assert results.summary().delivered == HOSTS
    assert results.totals["fatal"] == 0
    assert results.life["lingered"] >= 2 * HOSTS - 1
    assert results.life["lingering_packets"] > 0
    assert results.life["lingering_most"] == 2


def test_receives_that_come_late_hold_messages_back() -> None:
    # 30 steps of a ring, each a message on the connection to the next rank.
    ring = [{"kind": "collective", "operation": "ring-all-reduce", "bytes": 1_000_000}]
    late = run({"receives": {"posted": 1, "repost_us": 50}}, traffic=ring)
    assert late.summary().delivered == HOSTS * 30
    assert late.life["receive_waits"] == HOSTS * 29
    assert 29 * 50 < late.totals["end_ps"] * 1e-6 < 29 * 50 + 100
    assert json.loads(json.dumps(late.to_dict()))["life"] == dict(late.life)
    assert "464, 44.59 us" in dict(headline(late))["waits for a receive, mean"]
    refused = run({"receives": {"posted": 1, "repost_us": 50, "wait_us": 20}}, traffic=ring)
    assert refused.totals["fatal"] == 2 * HOSTS
    assert refused.summary().delivered == HOSTS


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"transport": {"kind": "mrc", "receives": {"posted": 0}}}, r"posted.* 0 .*1 to"),
        ({"transport": {"kind": "mrc", "receives": {}}}, "posted"),
        ({"transport": {"kind": "uet", "linger": True}}, "linger"),
        ({"faults": [{"kind": "mtu", "targets": ["links"], "bytes": 1279}]}, "1279.*1280 to 65535"),
        ({"faults": [{"kind": "mtu", "targets": ["links"]}]}, "bytes"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((ArgumentError, ValueError), match=words):
        sim.Scenario.model_validate(
            {
                "topology": {"hosts": HOSTS, "planes": 2, "radix": 16},
                "traffic": [{"kind": "permutation", "bytes": 1}],
                **fields,
            }
        )
