"""Profiles in all their states, EV operations, events and probes; unsupported operations."""

import asyncio
import dataclasses
import os
from ipaddress import IPv6Address

import pytest

from openmrc.controller import (
    CcAlgorithm,
    Controller,
    Ev,
    EvEventMask,
    EvField,
    EvMode,
    EvOp,
    EvOpEntry,
    EvProbe,
    PortStatusUpdate,
    ProfileState,
    expand_ev,
)
from openmrc.errors import ArgumentError, ClosedError, Error, StateError, UnsupportedError
from openmrc.testing import Impairment, impaired
from openmrc.verbs import Device, EvEvent, EvState, Port, QpState, WcStatus
from openmrc.wire import EvFormat
from tests.helpers.ends import bring_up, connected, device, eventually, make_end

INIT, OFFLINE, ONLINE = ProfileState


@pytest.fixture
def control():
    with device(planes=4).open() as context:
        yield Controller(context)


def udp_format(control):
    profile = control.ev_format_profile()
    profile.modify(OFFLINE, ev_format=EvFormat.UDP, widths=[16])
    profile.modify(ONLINE)
    return profile


SIXTEEN_BITS = EvField(width=16, min_val=20000, max_val=29999, mask=0xFFFF)


def make(control, what):
    """A profile of each kind with the attributes that OFFLINE needs."""
    if what == "format":
        return control.ev_format_profile(), {"ev_format": EvFormat.UDP, "widths": [16]}
    if what == "cc":
        return control.cc_profile(), {
            "algorithm": CcAlgorithm.NSCC,
            "base_rtt_us": 100,
            "link_rate_bps": 10**10,
        }
    return control.ev_profile(), {"mode": EvMode.AUTO, "format_profile": udp_format(control)}


@pytest.mark.parametrize("what", ["format", "ev", "cc"])
def test_a_profile_goes_from_init_to_online_and_back_by_these_steps_only(control, what):
    profile, attributes = make(control, what)
    for state, refused in (
        (INIT, [ONLINE]),
        (OFFLINE, []),
        (ONLINE, [INIT]),
        (OFFLINE, []),
        (INIT, [ONLINE]),
        (OFFLINE, []),
    ):
        if state is not profile.state:
            profile.modify(state, **(attributes if profile.state is INIT else {}))
        assert profile.state is state
        for other in refused:
            with pytest.raises(StateError, match=f"cannot go from {state.name} to {other.name}"):
                profile.modify(other)
            assert profile.state is state


@pytest.mark.parametrize("what", ["format", "ev", "cc"])
def test_attributes_are_checked_where_they_are_given(control, what):
    profile, attributes = make(control, what)
    with pytest.raises(StateError, match=r"INIT to OFFLINE of an? .* needs"):
        profile.modify(OFFLINE)
    with pytest.raises(ArgumentError, match=r"has no attribute colour; it has"):
        profile.modify(OFFLINE, colour=1, **attributes)
    with pytest.raises(StateError, match=r"INIT of an? .* does not take"):
        profile.modify(**attributes)
    assert profile.state is INIT
    profile.modify(OFFLINE, **attributes)
    profile.modify(**attributes)
    with pytest.raises(StateError, match=r"OFFLINE to INIT of an? .* does not take"):
        profile.modify(INIT, **attributes)
    # Attributes of a call are set before the step.
    profile.modify(ONLINE, **attributes)
    with pytest.raises(StateError, match=r"ONLINE of an? .* does not take"):
        profile.modify(**attributes)


def ev_profile(control, **attributes):
    profile = control.ev_profile()
    attributes["format_profile"] = attributes.get("format_profile") or udp_format(control)
    profile.modify(OFFLINE, **attributes)
    return profile


def test_an_explicit_profile_is_populated_one_by_one(control):
    profile = ev_profile(control, mode=EvMode.EXPLICIT, count=8, min_active=2)
    assert profile.query_evs() == [None] * 8
    wanted = [Ev(30000 + i, i % 4) for i in range(8)]
    for ev in wanted[:-1]:
        assert profile.replace_ev(None, ev) == 1
    with pytest.raises(StateError, match="1 of 8 entropy values are unpopulated"):
        profile.modify(ONLINE)
    with pytest.raises(ArgumentError, match="0x0001 on port 0 is not in the profile: 7 of its 8"):
        profile.replace_ev(Ev(1, 0), Ev(2, 0))
    for bad, words in (
        (Ev(0, 0), "1 to 65535 is allowed"),
        (Ev(1 << 16, 0), "a number of 16 bits is allowed"),
        (Ev(5, 4), "port is 4: 0 to 3 is allowed"),
    ):
        with pytest.raises(ArgumentError, match=words):
            profile.replace_ev(None, bad)
    assert profile.replace_ev(None, wanted[0], all_copies=True) == 1
    assert profile.replace_ev(wanted[0], wanted[-1], all_copies=True) == 2
    assert profile.replace_ev(wanted[-1], wanted[0]) == 1
    assert sorted(profile.query_evs()) == sorted(wanted)
    profile.modify(ONLINE)
    assert sorted(control._core.ev_profile(profile.profile_id)) == sorted(
        (ev.port, ev.value) for ev in wanted
    )
    with pytest.raises(StateError, match="replace_ev needs an EV profile in OFFLINE"):
        profile.replace_ev(wanted[0], Ev(31000, 0))


def context_paths(context, profile):
    """What packets of a profile carry, as (port, entropy value)."""
    return Controller(context)._core.ev_profile(profile.profile_id)


def test_a_mask_with_bounds_1_to_15_gives_15_values():
    field = EvField(width=16, init_val=0x8000, min_val=1, max_val=0xF, mask=0x0F00)
    with device(planes=1).open() as context:
        profile = ev_profile(Controller(context), mode=EvMode.GENERATED, fields=[field], count=32)
        profile.modify(ONLINE)
        # The value is the bits under the mask.
        values = {ev.value for ev in profile.query_evs()}
        assert values == {number << 12 for number in range(1, 16)}
        ports = {expand_ev(EvFormat.UDP, [16], [field], value) for value in values}
        assert ports == {port for _, port in context_paths(context, profile)}
        assert ports == {0x8000 | number << 8 for number in range(1, 16)}


def test_a_generated_profile_spreads_distinct_values_equally_over_its_ports(control):
    profile = ev_profile(control, mode=EvMode.GENERATED, fields=[SIXTEEN_BITS], count=64, seed=5)
    profile.modify(ONLINE)
    evs = profile.query_evs()
    assert len(evs) == len({ev.value for ev in evs}) == 64
    assert [sum(ev.port == port for ev in evs) for port in range(4)] == [16] * 4
    again = ev_profile(control, mode=EvMode.GENERATED, fields=[SIXTEEN_BITS], count=64, seed=5)
    again.modify(ONLINE)
    assert again.query_evs() == evs
    assert again.profile_id != profile.profile_id
    # Without a seed each profile draws its own.
    others = [ev_profile(control, mode=EvMode.GENERATED, fields=[SIXTEEN_BITS], count=64) for _ in range(2)]
    for other in others:
        other.modify(ONLINE)
    assert others[0].query_evs() != others[1].query_evs()


def test_a_queue_pair_uses_the_paths_of_its_profile_and_no_others():
    with device(planes=4).open() as one, device(planes=4).open() as two:
        control = Controller(one)
        profile = ev_profile(control, mode=EvMode.GENERATED, fields=[SIXTEEN_BITS], count=32, ports=(1, 3))
        profile.modify(ONLINE)
        a, b = make_end(one), make_end(two)
        bring_up(a, b, rtr_a={"ev_profile_id": profile.profile_id})
        a.qp.write(a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote())
        assert a.send_cq.take(1, 20)[0].ok
        used = {Ev(path["ev"], path["port"]) for path in one.path_stats() if path["tx_bytes"] > 10_000}
        assert used
        assert used <= set(profile.query_evs())
        assert {ev.port for ev in used} == {1, 3}
        with pytest.raises(StateError, match=f"0x{a.qp.qp_num:06x}"):
            profile.modify(OFFLINE)
        assert profile.state is ONLINE
        with pytest.raises(StateError, match="uses this EV format profile"):
            profile.query().format_profile.modify(OFFLINE)
        a.qp.close()
        profile.modify(OFFLINE)


def test_a_denied_path_carries_nothing_until_it_is_allowed_again():
    with device(planes=2).open() as one, device(planes=2).open() as two:
        control = Controller(one)
        profile = ev_profile(
            control, mode=EvMode.GENERATED, fields=[SIXTEEN_BITS], count=8, active=8, min_active=2
        )
        profile.modify(ONLINE)
        a, b = make_end(one), make_end(two)
        bring_up(a, b, rtr_a={"ev_profile_id": profile.profile_id})
        local, remote = a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote()

        def packets():
            a.qp.write(local, remote)
            assert a.send_cq.take(1, 20)[0].ok
            return {Ev(p["ev"], p["port"]): p["tx_packets"] for p in one.path_stats()}

        victim = profile.query_evs()[3]
        assert profile.query_ev_state(victim) is EvState.GOOD
        assert packets()[victim] > 0
        assert profile.modify_ev_state(victim, EvState.DENIED) == 1
        assert profile.query_ev_state(victim) is EvState.DENIED
        before = packets()
        assert packets()[victim] == before[victim]
        assert (victim.port, victim.value, EvState.DENIED) in a.qp.ev_states()
        profile.modify_ev_state(victim, EvState.GOOD)
        assert packets()[victim] > before[victim]
        with pytest.raises(ArgumentError, match="state is SKIP: GOOD or DENIED is allowed"):
            profile.modify_ev_state(victim, EvState.SKIP)
        with pytest.raises(ArgumentError, match="is not in the profile: 8 of its 8"):
            profile.modify_ev_state(Ev(1, 1), EvState.DENIED)


def test_a_value_is_denied_before_the_profile_goes_online_and_until_init(control):
    profile = ev_profile(control, mode=EvMode.EXPLICIT, count=4)
    for call in (control.ev_profile().query, control.ev_profile().query_evs):
        with pytest.raises(StateError, match="in OFFLINE or ONLINE, this one is in INIT"):
            call()
    with pytest.raises(StateError, match="in ONLINE, this one is in OFFLINE"):
        _ = profile.profile_id
    for port in range(4):
        profile.replace_ev(None, Ev(45000, port), state=EvState.DENIED if port == 3 else EvState.GOOD)
    assert profile.modify_ev_state(Ev(45000, 1), EvState.DENIED) == 0
    for state in (OFFLINE, ONLINE, OFFLINE):
        if state is not profile.state:
            profile.modify(state)
        states = [profile.query_ev_state(Ev(45000, port)).name for port in range(4)]
        assert states == ["GOOD", "DENIED", "GOOD", "DENIED"]
    profile.modify(INIT)
    with pytest.raises(StateError, match="in OFFLINE or ONLINE, this one is in INIT"):
        profile.query_ev_state(Ev(45000, 1))


def test_an_auto_profile_has_the_values_of_the_device(control):
    profile = ev_profile(control, mode=EvMode.AUTO)
    assert profile.query_evs() == []
    profile.modify(ONLINE)
    assert sorted(profile.query_evs()) == sorted(Ev(ev, port) for port, ev in control._core.ev_profile(0))


def test_events_pass_the_mask_of_their_profile_only():
    # A shorter timeout would expire on every path when this process waits some milliseconds for a processor.
    with connected(planes=2, rts={"timeout": 14, "exp_cnt": 20}) as (a, b):
        control = Controller(a.context)
        local, remote = a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote()

        def more_events():
            a.qp.write(local, remote)
            assert a.send_cq.take(1, 60)[0].ok
            return control.poll_ev_events(1000)

        with impaired(a.context, Impairment.drop(ports=[1])):
            seen = []
            assert eventually(lambda: seen.extend(more_events()) or seen)
        assert {(event.state, event.port) for event in seen} == {(EvState.ASSUMED_BAD, 1)}
        assert {event.profile_id for event in seen} == {0}
        assert seen[0].drop_count == 0
        assert [event.time_ns for event in seen] == sorted(event.time_ns for event in seen)

        async def good_again():
            return await anext(e.port async for e in control.ev_events() if e.state is EvState.GOOD)

        async def both():
            waiting = asyncio.create_task(good_again())
            while not waiting.done():
                a.qp.write(local, remote)
                while not a.send_cq.poll():
                    await a.send_cq.wait_async(60)
                await asyncio.sleep(0.01)
            return waiting.result()

        assert asyncio.run(asyncio.wait_for(both(), 60)) == 1


def event_of(number, path, state):
    """An event of what packets carry."""
    return EvEvent(
        time_ns=1, profile_id=number, qp_num=1, ev=path.value, port=path.port, state=state, drop_count=0
    )


def test_masks_filter_by_profile_and_state(control):
    profile = ev_profile(control, mode=EvMode.AUTO, event_mask=EvEventMask.GOOD)
    profile.modify(ONLINE)

    number, ev = profile.profile_id, profile.query_evs()[0]
    event = event_of(number, ev, EvState.ASSUMED_BAD)
    assert control._wanted(event) is None
    other = dataclasses.replace(event, profile_id=0)
    assert control._wanted(other) == other
    profile.modify(event_mask=EvEventMask.ASSUMED_BAD)
    assert control._wanted(event) == event


def test_an_event_names_the_value_as_its_profile_does(control):
    field = EvField(width=16, init_val=0x9000, mask=0x00FF)
    profile = ev_profile(
        control, mode=EvMode.GENERATED, fields=[field], count=8, event_mask=EvEventMask.ALL, seed=3
    )
    profile.modify(ONLINE)
    ev = profile.query_evs()[0]
    carried = expand_ev(EvFormat.UDP, [16], [field], ev.value)
    event = event_of(profile.profile_id, Ev(carried, ev.port), EvState.GOOD)
    assert carried != ev.value
    assert control._wanted(event).ev == ev.value


def test_probes_tell_which_paths_are_alive():
    with device(planes=3).open() as one, device(planes=3, ep_ops="peers").open() as two:
        control = Controller(one)
        evs = [Ev(value, port) for port, value in control._core.ev_profile(0)]
        some = [next(ev for ev in evs if ev.port == port) for port in range(3)]
        probes = [EvProbe(two.addresses, ev, probe_id=100 + ev.port) for ev in some]
        assert [result.rtt_ns for result in control.probe_ev(probes, timeout=0.05)] == [None] * 3
        with Controller(two).add_peer(one.addresses), impaired(one, Impairment.drop(ports=[1])):
            results = control.probe_ev(probes, timeout=0.3)
        assert [(result.probe_id, result.ev) for result in results] == [(100 + ev.port, ev) for ev in some]
        assert [result.rtt_ns is not None for result in results] == [True, False, True]
        assert all(result.rtt_ns > 0 for result in results if result.rtt_ns is not None)
        assert [result.rtt_ns for result in control.probe_ev(probes, timeout=0.05)] == [None] * 3


def test_a_batch_of_probes_may_go_to_many_nodes():
    with device(planes=1).open() as one, device(planes=1).open() as two, device(planes=1).open() as three:
        control = Controller(one)
        (port, value), *_ = control._core.ev_profile(0)
        for node in (two, three):
            Controller(node).add_peer(one.addresses)
        gone = [("127.200.200.200", 4791)]
        targets = [two.addresses, gone, three.addresses, two.addresses]
        results = control.probe_ev([EvProbe(peer, Ev(value, port), i) for i, peer in enumerate(targets)], 0.3)
        assert [result.rtt_ns is not None for result in results] == [True, False, True, True]
        assert [result.probe_id for result in results] == [0, 1, 2, 3]
        assert control.probe_ev([]) == []


def test_a_probe_on_a_path_that_does_not_exist_is_refused(control):
    with pytest.raises(ArgumentError, match="EV 1"):
        control.probe_ev([EvProbe([("127.0.0.1", 4791)], Ev(1, 0))])


def test_ports_are_switched_and_shown(control):
    control.set_port_admin(2, up=False)
    states = control.query_ports()
    assert [state.up for state in states] == [True, True, False, True]
    assert (states[2].admin_up, states[2].link_up, states[2].interface) == (False, True, "lo")
    assert states[0].addr == control.context.addresses[0][0]
    with pytest.raises(ArgumentError, match="port 4 does not exist"):
        control.set_port_admin(4, up=True)


UNSUPPORTED = [EvFormat.STRUCTURED, EvFormat.SRV6, EvFormat.SRV6_SRH]


@pytest.mark.parametrize("ev_format", UNSUPPORTED)
def test_a_format_other_than_the_device_s_is_refused(control, ev_format):
    layout = control.ev_format_profile()
    with pytest.raises(UnsupportedError, match=f"{ev_format} cannot be used .* its ev_format is udp"):
        layout.modify(OFFLINE, ev_format=ev_format, widths=[16, 16])
    assert layout.state is INIT
    assert ev_format not in control.query_device().ev_formats


def test_structured_entropy_values_take_source_port_and_flow_label():
    first = 20_000 + os.getpid() % 10_000
    devices = [
        Device(
            ports=[Port("::1", first + 4 * end), Port("::1", first + 4 * end + 1)],
            ev_format=EvFormat.STRUCTURED,
            evs_per_port=4,
        )
        for end in range(2)
    ]
    with devices[0].open() as one, devices[1].open() as two:
        a, b = make_end(one), make_end(two)
        control = Controller(one)
        assert control.query_device().ev_formats == (EvFormat.STRUCTURED,)
        layout = control.ev_format_profile()
        layout.modify(OFFLINE, ev_format=EvFormat.STRUCTURED, widths=[16, 16])
        layout.modify(ONLINE)
        # Two values per source port: only the flow label differs.
        rows = one.path_stats()
        evs = [Ev(label << 16 | row["ev"], row["port"]) for row in rows for label in (0x1234, 0xFFFF)]
        profile = ev_profile(
            control, mode=EvMode.EXPLICIT, format_profile=layout, count=len(evs), active=len(evs)
        )
        for ev in evs:
            profile.replace_ev(None, ev)
        profile.modify(ONLINE)
        bring_up(a, b, rtr_a={"ev_profile_id": profile.profile_id})
        outbox, inbox = bytearray(bytes(range(256)) * 8192), bytearray(1 << 21)
        a.qp.write(a.region(outbox), b.region(inbox).remote())
        assert a.send_cq.take(timeout=20)[0].status is WcStatus.SUCCESS
        assert inbox == outbox
        sent = {Ev(row["ev"], row["port"]): row["tx_packets"] for row in one.path_stats()}
        assert all(sent[ev] > 0 for ev in evs)
        # The reflected values are those that were sent.
        assert a.qp.stats()["sacks_in"] > 0
        stats = a.qp.stats()
        assert [stats[name] for name in ("invalid", "peer_swapped_entropy", "peer_unknown_entropy")] == [
            0
        ] * 3
        assert {state for _, _, state in a.qp.ev_states()} == {EvState.GOOD}


def test_a_socket_of_the_device_stands_in_for_source_port_0():
    """The published sample of generated structured values has 16 bits, all in the flow label."""
    first = 30_000 + os.getpid() % 10_000
    devices = [
        Device(ports=[Port("::1", first + end)], ev_format=EvFormat.STRUCTURED, evs_per_port=4)
        for end in range(2)
    ]
    with devices[0].open() as one, devices[1].open() as two:
        a, b = make_end(one), make_end(two)
        control = Controller(one)
        (stand_in, *_) = [row["ev"] & 0xFFFF for row in one.path_stats()]
        layout = control.ev_format_profile()
        layout.modify(OFFLINE, ev_format=EvFormat.STRUCTURED, widths=[8, 4, 4])
        layout.modify(ONLINE)
        fields = [EvField(width=width, mask=(1 << width) - 1) for width in (8, 4, 4)]
        profile = ev_profile(
            control, mode=EvMode.GENERATED, format_profile=layout, count=8, active=8, fields=fields
        )
        profile.modify(ONLINE)
        values = [ev.value for ev in profile.query_evs()]
        assert len(set(values)) == 8
        assert {value & 0xFFFF for value in values} == {0}
        bring_up(a, b, rtr_a={"ev_profile_id": profile.profile_id})
        outbox, inbox = bytearray(bytes(range(256)) * 8192), bytearray(1 << 21)
        a.qp.write(a.region(outbox), b.region(inbox).remote())
        assert a.send_cq.take(timeout=20)[0].status is WcStatus.SUCCESS
        assert inbox == outbox
        sent = {row["ev"] for row in one.path_stats() if row["tx_packets"] > 0}
        assert {value | stand_in for value in values} <= sent
        stats = a.qp.stats()
        assert stats["sacks_in"] > 0
        assert [stats[name] for name in ("invalid", "peer_unknown_entropy")] == [0, 0]


def test_a_structured_device_needs_ipv6():
    with pytest.raises(ArgumentError, match="IPv6"):
        device(ev_format=EvFormat.STRUCTURED)


def test_port_status_updates_on_request_are_answered_and_believed_when_confirmed():
    with device(planes=2).open() as here, device(planes=2).open() as there:
        ours, others = Controller(here), Controller(there)
        with ours.add_peer(there.addresses), others.add_peer(here.addresses):
            absent = [("127.1.9.1", 4791), ("127.2.9.1", 4791)]
            updates = [
                PortStatusUpdate(there.addresses, (0, 1), port=1, update_id=7),
                PortStatusUpdate(absent, (0,), update_id=8),
                PortStatusUpdate(there.addresses, (0, 1), update_id=9),
            ]
            before = here.stats()["node"]["port_updates_sent"]
            results = ours.update_port_status(updates, timeout=0.3)
            assert [result.update_id for result in results] == [7, 8, 9]
            assert [result.rtt_ns is not None for result in results] == [True, False, True]
            assert here.stats()["node"]["port_updates_sent"] == before + 3
            assert ours.update_port_status([]) == []
            # The port that is said to be down answers questions, so nobody believes that it is.
            ours.update_port_status([PortStatusUpdate(there.addresses, (1,))])
            assert eventually(lambda: there.stats()["node"]["ports_asked"] > 0)
            assert there.stats()["node"]["port_updates_applied"] == 0
            for wrong in ((2,), None), ((0,), 2):
                with pytest.raises(ArgumentError, match="ports 0 to 1"):
                    ours.update_port_status([PortStatusUpdate(there.addresses, *wrong)])
            ours.set_port_admin(1, up=False)
            with pytest.raises(ArgumentError, match="is up"):
                ours.update_port_status([PortStatusUpdate(there.addresses, (0,), port=1)])


def test_a_controller_is_told_all_limits(control):
    limits = control.query_device()
    assert (limits.num_ports, limits.ev_count_align, limits.ev_max_width) == (4, 4, 16)
    assert (limits.ev_max_count, limits.ev_free_count) == (4096, 4096 - 256)
    assert (limits.max_profiles, limits.ev_op_max_entries, limits.protocol_version) == (256, None, 1)
    assert limits.cc_algorithms == tuple(CcAlgorithm)
    profile = ev_profile(control, mode=EvMode.AUTO, format_profile=udp_format(control), count=8)
    profile.modify(ONLINE)
    assert control.query_device().ev_free_count == limits.ev_free_count - 8


def test_operations_on_lists_of_values_stop_at_the_first_that_fails(control):
    profile = ev_profile(control, mode=EvMode.EXPLICIT, format_profile=udp_format(control), count=4)
    entries = [EvOpEntry(ev_new=Ev(40000 + port, port)) for port in range(4)]
    assert profile.operate(EvOp.REPLACE_EV, entries) == entries
    again = [EvOpEntry(ev=Ev(40000, 0), ev_new=Ev(41000, 0)), EvOpEntry(ev=Ev(1, 0), ev_new=Ev(2, 0))]
    with pytest.raises(ArgumentError, match="not in the profile") as refused:
        profile.operate(EvOp.REPLACE_EV, again)
    assert refused.value.done == 1
    assert [entry.ev.value for entry in profile.operate(EvOp.QUERY_EV_ARRAY)] == [41000, 40001, 40002, 40003]
    profile.modify(ONLINE)
    denied = [EvOpEntry(ev=Ev(41000, 0), state=EvState.DENIED), EvOpEntry(ev=Ev(40001, 1))]
    with pytest.raises(ArgumentError, match="needs state") as refused:
        profile.operate(EvOp.MODIFY_EV_STATE, denied)
    assert refused.value.done == 1
    states = profile.operate(EvOp.QUERY_EV_STATE, [EvOpEntry(ev=Ev(41000, 0)), EvOpEntry(ev=Ev(40001, 1))])
    assert [entry.state for entry in states] == [EvState.DENIED, EvState.GOOD]
    states = [entry.state for entry in profile.operate(EvOp.QUERY_EV_ARRAY)]
    assert states == [EvState.DENIED] + [EvState.GOOD] * 3
    for op, entry, word in [
        (EvOp.REPLACE_EV, EvOpEntry(), "needs ev_new"),
        (EvOp.QUERY_EV_STATE, EvOpEntry(), "needs ev"),
        (EvOp.QUERY_EV_ARRAY, EvOpEntry(), "takes no entries"),
    ]:
        with pytest.raises(ArgumentError, match=word):
            profile.operate(op, [entry])


GENERATED = {"mode": EvMode.GENERATED, "count": 8}
WRONG = {
    "mode": ({"mode": "some"}, "mode is 'some': auto, explicit, generated is allowed"),
    "few": ({"mode": EvMode.AUTO, "count": 3}, "count is 3: 4 to 512 is allowed"),
    "many": ({"mode": EvMode.AUTO, "count": 2000}, "count is 2000: 4 to 512 is allowed"),
    "ports": ({"mode": EvMode.AUTO, "ports": (4,)}, "port is 4: 0 to 3 is allowed"),
    "explicit without count": ({"mode": EvMode.EXPLICIT}, "needs count"),
    "generated without count": ({"mode": EvMode.GENERATED}, "needs count"),
    "least of rotation": (GENERATED | {"min_active": 9}, "min_active is 9: 0 to 8"),
    "rotation": (GENERATED | {"active": 9}, "active is 9: 1 to 8"),
    "event mask": (GENERATED | {"event_mask": 4}, "event_mask is 4: a sum of GOOD"),
    "peer without SRv6": (GENERATED | {"peer": [("127.0.0.1", 1)]}, "peer is set: None without SRv6"),
    "field too wide": (
        GENERATED | {"fields": [EvField(width=17)]},
        "packets of this device carry 16",
    ),
    "bound too wide": (
        GENERATED | {"fields": [EvField(width=16, max_val=16, mask=0xF)]},
        "max is 0x10, its mask has 4 bits",
    ),
    "bounds": (GENERATED | {"fields": [EvField(width=16, min_val=1, mask=0xF)]}, "min is above max"),
    "two fields": (GENERATED | {"fields": [EvField(width=8)] * 2}, "2 fields, its format has 1"),
}


@pytest.mark.parametrize(("attributes", "words"), WRONG.values(), ids=WRONG)
def test_an_impossible_ev_profile_is_refused(control, attributes, words):
    profile = control.ev_profile()
    with pytest.raises(Error, match=words):
        profile.modify(OFFLINE, format_profile=udp_format(control), **attributes)
    assert profile.state is INIT


def test_more_values_than_there_are_keep_a_profile_offline(control):
    profile = ev_profile(control, mode=EvMode.AUTO, count=512)
    with pytest.raises(ArgumentError, match="count is 512: up to 256, all of the device, is allowed"):
        profile.modify(ONLINE)
    assert profile.state is OFFLINE


def test_a_count_is_rounded_down_to_a_multiple_of_the_ports(control):
    profile = ev_profile(control, mode=EvMode.EXPLICIT, count=11)
    assert (profile.query().count, len(profile.query_evs())) == (8, 8)
    assert (profile.query().min_active, profile.query().event_mask) == (2, EvEventMask.NONE)


def test_generated_values_repeat_only_where_the_fields_allow_no_more(control):
    narrow = EvField(width=16, init_val=0x8000, max_val=3, mask=3)
    values = {number << 14 for number in range(4)}
    for count, different in ((4, 1), (16, 4), (32, 4)):
        profile = ev_profile(control, mode=EvMode.GENERATED, fields=[narrow], count=count)
        profile.modify(ONLINE)
        evs = profile.query_evs()
        by_port = [[ev.value for ev in evs if ev.port == port] for port in range(4)]
        assert [len(each) for each in by_port] == [count // 4] * 4
        assert [len({*each}) for each in by_port] == [different] * 4
        assert {ev.value for ev in evs} == values, "the ports share no value while there are enough"


def test_congestion_control_profiles_are_used_by_queue_pairs():
    with device().open() as one, device().open() as two:
        control = Controller(one)
        fixed = control.cc_profile()
        fixed.modify(OFFLINE, algorithm="none", base_rtt_us=500, window=123_456)
        fixed.modify(ONLINE)
        nscc = control.cc_profile()
        nscc.modify(OFFLINE, algorithm=CcAlgorithm.NSCC, base_rtt_us=100, link_rate_bps=10**9, max_wnd=77_000)
        nscc.modify(ONLINE)
        for profile, window in ((fixed, 123_456), (nscc, 77_000)):
            a, b = make_end(one), make_end(two)
            bring_up(a, b, rtr_a={"cc_profile_id": profile.profile_id})
            assert a.qp.stats()["cwnd"] == window
            a.qp.write(a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote())
            assert a.send_cq.take(1, 60)[0].ok


def test_nscc_needs_parameters_and_is_held_by_queue_pairs(control):
    profile = control.cc_profile()
    profile.modify(OFFLINE, algorithm=CcAlgorithm.NSCC)
    with pytest.raises(StateError, match="OFFLINE to ONLINE of a congestion control profile needs config"):
        profile.modify(ONLINE)
    # The others follow from the device's network.
    profile.modify(ONLINE, max_wnd=50_000)
    end = make_end(control.context)
    end.qp.modify(QpState.INIT, cc_profile_id=profile.profile_id)
    with pytest.raises(StateError, match=f"is used by queue pair 0x{end.qp.qp_num:06x}") as refused:
        profile.modify(OFFLINE)
    assert refused.value.rule == "in_use"
    end.qp.modify(QpState.RESET)
    profile.modify(OFFLINE)
    assert (profile.query().algorithm, profile.query().max_wnd) == (CcAlgorithm.NSCC, 50_000)


def test_a_queue_pair_cannot_name_a_profile_that_is_not_there(control):
    end = make_end(control.context)
    for name in ("ev_profile_id", "cc_profile_id"):
        with pytest.raises(ArgumentError, match=r"there is no .* profile 9"):
            end.qp.modify(QpState.INIT, **{name: 9})
    assert end.qp.state is QpState.RESET


CC_WRONG = {
    "algorithm": ({"algorithm": "cubic"}, "algorithm is 'cubic': uet-1.0-nscc, none is allowed"),
    "gain of no algorithm": ({"algorithm": "none", "gamma": 0.5}, "gamma is set: None with algorithm none"),
    "jump": ({"algorithm": "uet-1.0-nscc", "max_md_jump": 1.5}, "max_md_jump is 1.5: 0 to 1 is allowed"),
    "gate": ({"algorithm": "uet-1.0-nscc", "qa_gate": 64}, "qa_gate is 64: 0 to 63 is allowed"),
    "window of NSCC": (
        {"algorithm": "uet-1.0-nscc", "base_rtt_us": 10, "link_rate_bps": 1, "window": 1},
        "max_wnd",
    ),
}


@pytest.mark.parametrize(("attributes", "words"), CC_WRONG.values(), ids=CC_WRONG)
def test_an_impossible_congestion_control_profile_is_refused(control, attributes, words):
    profile = control.cc_profile()
    with pytest.raises(Error, match=words):
        profile.modify(OFFLINE, **attributes)
    assert profile.state is INIT


def test_an_ev_expands_to_what_switches_read():
    fixed = [EvField(width=width, init_val=value) for width, value in ((32, 0x5F000000), (16, 0x11))]
    path = [
        *fixed,
        EvField(width=16, init_val=0x100, max_val=255, mask=0xFF),
        EvField(width=16, init_val=0xE00C),
    ]
    widths = [32, 16, 16, 16]
    assert expand_ev(EvFormat.SRV6, widths, path, 0x02000000) == IPv6Address("5f00:0:11:102:e00c::")
    assert expand_ev(EvFormat.UDP, [8], [EvField(width=8, init_val=0xFF, mask=0xA5)], 0b0110 << 12) == 0x7E00
    assert (
        expand_ev(
            EvFormat.STRUCTURED, [8, 16], [EvField(width=4, init_val=0xA), EvField(width=8, init_val=0xBB)], 0
        )
        == 0x0A00BB00
    )
    first, second = expand_ev(
        EvFormat.SRV6_SRH,
        [112, 16, 16],
        [EvField(width=8, init_val=7), *[EvField(width=16, init_val=0xABCD)] * 2],
        0,
    )
    assert (int(first), int(second)) == (7 << 16 | 0xABCD, 0xABCD << 112)
    with pytest.raises(ArgumentError, match="no field of the format ends at bit 128"):
        expand_ev(EvFormat.SRV6_SRH, [120, 16], [], 0)
    everything = [EvField(width=32, mask=0xFFFFFFFF)] * 8
    literal = bytes(range(1, 33))
    assert expand_ev(EvFormat.SRV6_SRH, [128, 128], [], 0) == (IPv6Address(0), IPv6Address(0))
    assert expand_ev(EvFormat.SRV6_SRH, [32] * 8, everything, literal) == (
        IPv6Address(literal[:16]),
        IPv6Address(literal[16:]),
    )
    assert expand_ev(
        EvFormat.SRV6, [32] * 4, everything[:4], int.from_bytes(literal[:16]) << 128
    ) == IPv6Address(literal[:16])
    with pytest.raises(ArgumentError, match="a bit behind them is set"):
        expand_ev(EvFormat.SRV6, [128], everything[:1], literal)
    with pytest.raises(ArgumentError, match="3 fields, its format has 1"):
        expand_ev(EvFormat.UDP, [8], [EvField(width=1)] * 3, 0)


def test_a_controller_of_a_closed_context_says_so(control):
    profile = ev_profile(control, mode=EvMode.AUTO)
    control.context.close()
    for call in (
        lambda: profile.modify(ONLINE),
        control.query_ports,
        control.poll_ev_events,
        lambda: control.set_port_admin(0, up=False),
        lambda: control.add_peer([("127.0.0.1", 1)]),
    ):
        with pytest.raises(ClosedError):
            call()
    assert profile.state is OFFLINE
