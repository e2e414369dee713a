"""A bad network does not change the guarantees of verbs: every byte, every completion once and in order."""

import dataclasses
import json
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import _core
from openmrc.controller import Controller, Ev, EvProbe
from openmrc.errors import ArgumentError, ClosedError
from openmrc.testing import Impairment, ImpairmentKind, PacketClass, check, impair, impaired
from openmrc.verbs import EvState, QpCap
from tests.helpers.ends import connected, device, eventually

PATIENT = {"timeout": 10, "exp_cnt": 20}

RULES = {
    "drop": [Impairment.drop(probability=0.05)],
    "duplicate": [Impairment.duplicate(probability=0.3)],
    "reorder": [Impairment.reorder(packets=9, probability=0.2)],
    "corrupt": [Impairment.corrupt(bits=3, probability=0.05)],
    "delay": [Impairment.delay(200, jitter_us=400, probability=0.3)],
    "ecn_mark": [Impairment.ecn_mark(probability=0.5)],
    "trim": [Impairment.trim(probability=0.1)],
    "trim at the last hop": [Impairment.trim(last_hop=True, probability=0.1)],
    "lost feedback": [Impairment.drop(probability=0.2, packet_class=PacketClass.CONTROL)],
    "everything": [
        Impairment.drop(probability=0.01),
        Impairment.duplicate(probability=0.05),
        Impairment.reorder(probability=0.1),
        Impairment.corrupt(probability=0.01),
        Impairment.delay(50, jitter_us=500, probability=0.1),
        Impairment.ecn_mark(probability=0.1),
        Impairment.trim(probability=0.02),
    ],
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_every_byte_and_every_completion_survives(rules):
    count, size = 60, 20_000
    with connected(planes=4, cap=QpCap(max_send_wr=count, max_recv_wr=count), rts=PATIENT) as (a, b):
        source = np.random.default_rng(6).integers(0, 256, (count, size), np.uint8)
        target = np.zeros_like(source)
        local, remote = a.region(source), b.region(target).remote()
        b.qp.post_recv(count)
        with impaired(a.context, *rules, seed=1) as there, impaired(b.context, *rules, seed=2) as back:
            for i in range(count):
                place = i * size
                a.qp.write(local.sge(place, size), remote.at(place), imm_data=i, wr_id=i)
            received = b.recv_cq.take(count, 120)
            sent = a.send_cq.take(count, 120)
            hits = [x + y for x, y in zip(there.hits(), back.hits(), strict=True)]
        assert all(hits), hits
        assert [wc.imm_data for wc in received] == list(range(count))
        assert [(wc.wr_id, wc.ok) for wc in sent] == [(i, True) for i in range(count)]
        assert (target == source).all()


@settings(max_examples=15)
@given(
    st.lists(
        st.builds(
            Impairment,
            kind=st.sampled_from(ImpairmentKind),
            probability=st.floats(0, 0.2),
            packet_class=st.sampled_from(PacketClass),
            ports=st.none() | st.sets(st.integers(0, 3)),
            packets=st.integers(1, 20),
            delay_us=st.floats(0, 300),
            jitter_us=st.floats(0, 300),
            bits=st.integers(1, 40),
        ),
        max_size=5,
    ),
    st.integers(0, 2**64 - 1),
)
def test_no_mixture_of_rules_changes_a_byte(rules, seed):
    size = 300_000
    with connected(planes=4, rts=PATIENT) as (a, b):
        source = np.random.default_rng(7).integers(0, 256, size, np.uint8)
        target = np.zeros_like(source)
        impair(a.context, *rules, seed=seed)
        impair(b.context, *rules, seed=seed ^ 1)
        a.qp.write(a.region(source), b.region(target).remote())
        assert a.send_cq.take(1, 120)[0].ok
        assert (target == source).all()


def test_a_dead_plane_is_left_alone_and_comes_back():
    with connected(planes=4, rts=PATIENT) as (a, b):
        local, remote = a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote()

        def on_plane_2():
            a.qp.write(local, remote)
            assert a.send_cq.take(1, 60)[0].ok
            return {state for port, _, state in a.qp.ev_states() if port == 2}

        with impaired(a.context, Impairment.drop(ports=[2])) as network:
            assert eventually(lambda: on_plane_2() & {EvState.ASSUMED_BAD})
            assert network.hits()[0] > 0
            event = a.context.ev_events.get(20)
            assert (event.state, event.port, event.qp_num) == (EvState.ASSUMED_BAD, 2, a.qp.qp_num)
            assert event.ev in {path["ev"] for path in a.context.path_stats() if path["port"] == 2}
        assert eventually(lambda: on_plane_2() <= {EvState.GOOD, EvState.SKIP}, 60)


def test_a_rule_can_choose_single_entropy_values():
    # On a busy machine a timeout of some milliseconds would expire and take unused paths out of rotation.
    with connected(planes=2, rts=PATIENT | {"timeout": 14}) as (a, b):
        local, remote = a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote()
        a.qp.write(local, remote)
        assert a.send_cq.take(1, 60)[0].ok
        # Paths in rotation now.
        before = {(path["port"], path["ev"]): path["tx_packets"] for path in a.context.path_stats()}
        a.qp.write(local, remote)
        assert a.send_cq.take(1, 60)[0].ok
        used = sorted(
            a.context.path_stats(), key=lambda path: path["tx_packets"] - before[path["port"], path["ev"]]
        )[-8:]
        rules = [Impairment.drop(ports=[path["port"]], evs=[path["ev"]]) for path in used]
        nobodys = Impairment.drop(evs=[1])
        began = time.monotonic_ns()
        with impaired(a.context, *rules, nobodys) as network:
            for _ in range(16):
                a.qp.write(local, remote)
                assert a.send_cq.take(1, 60)[0].ok
            *hits, none = network.hits()
            *when, never = network.last_hit_ns()
        # On a busy machine single paths may leave the rotation anyway.
        assert sum(count > 0 for count in hits) >= 4
        assert all((at is not None) == (count > 0) for at, count in zip(when, hits, strict=True))
        assert all(began <= at <= time.monotonic_ns() for at in when if at)
        assert (none, never) == (0, None)
        assert sum(hits) < a.qp.stats()["data_packets"] / 8


def test_a_schedule_ends_a_rule_and_replacing_rules_ends_them_all():
    with connected(rts=PATIENT) as (a, b):
        remote = b.region(bytearray(1000)).remote()
        network = impair(a.context, Impairment.drop(end=0.001), Impairment.drop(start=3600))
        a.qp.write(bytes(200), remote)
        assert a.send_cq.take(1, 60)[0].ok
        assert network.hits()[1] == 0
        network.set(Impairment.drop())
        a.qp.write(bytes(200), remote)
        assert a.send_cq.wait(0.05) is False
        network.clear()
        assert a.send_cq.take(1, 60)[0].ok
        assert network.hits() == []


def hit_paths(context, peer, evs, seed):
    """The paths that a rule for half of them hits with this seed: no probe of theirs is ever answered."""
    silent = set(evs)
    with impaired(context, Impairment.drop(ev_fraction=0.5), seed=seed):
        for _ in range(4):
            asked = list(silent)
            answers = Controller(context).probe_ev([EvProbe(peer, ev) for ev in asked], timeout=0.5)
            silent -= {ev for ev, answer in zip(asked, answers, strict=True) if answer.rtt_ns is not None}
    return silent


def test_the_same_seed_chooses_the_same_paths():
    with connected(planes=2, rts=PATIENT) as (a, b):
        evs = [Ev(value, port) for port, value, _ in a.qp.ev_states()][:32]
        one = hit_paths(a.context, b.context.addresses, evs, seed=5)
        assert len(evs) / 4 < len(one) < len(evs) * 3 / 4
        assert hit_paths(a.context, b.context.addresses, evs, seed=5) == one
        assert hit_paths(a.context, b.context.addresses, evs, seed=6) != one


def test_a_rule_has_the_fields_and_defaults_of_the_core():
    ours = Impairment(kind=ImpairmentKind.DROP)
    core = json.loads(_core.IMPAIRMENT_DEFAULTS)
    assert {field.name: getattr(ours, field.name) for field in dataclasses.fields(ours)} == core | {
        "kind": "drop"
    }


def test_kinds_and_classes_are_those_of_the_core():
    def known(field):
        with pytest.raises(ArgumentError) as caught:
            check([dataclasses.replace(Impairment.drop(), **{field: "?"})], 1)
        return set(re.findall("`([a-z_]+)`", str(caught.value)))

    aliases = {"loss", "mark"}
    assert known("kind") - aliases == set(ImpairmentKind)
    assert known("packet_class") == set(PacketClass)


IMPOSSIBLE = {
    "probability": (Impairment.drop(probability=1.5), "probability|1.5"),
    "fraction": (Impairment.drop(ev_fraction=-0.1), "fraction|-0.1"),
    "evs and fraction": (Impairment.drop(evs=[1], ev_fraction=0.5), "not both"),
    "port": (Impairment.drop(ports=[16]), "port 16|this device has ports 0 to "),
    "ends before it starts": (Impairment.drop(start=2, end=1), "end after it starts"),
    "negative delay": (Impairment.delay(-1), "delay_us is -1"),
    "negative port": (Impairment.drop(ports=[-1]), "-1"),
    "endless": (Impairment.drop(end=float("inf")), "not allowed|JSON"),
    "text": (Impairment.drop(probability="much"), "probability|much"),
    "unknown kind": (Impairment(kind="explode"), "explode"),
    "unknown class": (Impairment.drop(packet_class="most"), "most"),
}


@pytest.mark.parametrize(("rule", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_impossible_rule_is_refused_and_the_others_stay(rule, words):
    with device().open() as context:
        network = impair(context, Impairment.drop(ports=[1]))
        with pytest.raises(ArgumentError) as caught:
            network.set(rule)
        for word in words.split("|"):
            assert word in str(caught.value)
        assert len(network.hits()) == 1
    with pytest.raises(ClosedError):
        network.clear()
