"""A peer cannot reach memory that it may not write, whatever it names; both ends are told."""

import gc
import itertools
import random

import pytest

from openmrc.verbs import (
    AccessFlags,
    AsyncEventType,
    QpState,
    RemoteBuffer,
    SendWR,
    Sge,
    WcStatus,
)
from tests.helpers.ends import bring_up, connected, device, eventually, make_end

UNTOUCHED = b"\x55"


def guarded(length=64, margin=64):
    """A buffer with only its middle registered: writes next to the region would show."""
    whole = bytearray(UNTOUCHED * (length + 2 * margin))
    return whole, memoryview(whole)[margin : margin + length]


def stale(b, view):
    region = b.region(view)
    place = region.remote()
    region.close()
    return place


def of_another_domain(b, view):
    return b.context.alloc_pd().register(view).remote()


def moved(by, longer=0):
    def place(b, view):
        good = b.region(view).remote()
        return RemoteBuffer(good.addr + by, good.length + longer, good.rkey)

    return place


REFUSED = {
    "deregistered": (stale, "refused_rkey"),
    "never registered": (lambda b, view: RemoteBuffer(b.region(view).addr, 64, 0x12345678), "refused_rkey"),
    "other domain": (of_another_domain, "refused_pd"),
    "local write only": (
        lambda b, view: b.region(view, AccessFlags.LOCAL_WRITE).remote(),
        "refused_access",
    ),
    "one before": (moved(-1), "refused_bounds"),
    "one behind": (moved(1), "refused_bounds"),
    "far away": (moved(1 << 40), "refused_bounds"),
    "round the end of memory": (
        lambda b, view: RemoteBuffer((1 << 64) - 8, 64, b.region(view).rkey),
        "refused_bounds",
    ),
}


@pytest.mark.parametrize(("place", "counter"), REFUSED.values(), ids=REFUSED)
def test_a_write_that_is_not_allowed_changes_nothing_and_ends_both_queue_pairs(place, counter):
    with connected() as (a, b):
        whole, view = guarded()
        target = place(b, view)
        a.qp.post_send(
            SendWR(sg_list=[b"\xff" * 64], remote_addr=target.addr, rkey=target.rkey, send_flags=10)
        )
        (done,) = a.send_cq.take(1, 20)
        assert done.status is WcStatus.REM_ACCESS_ERR
        assert not done.ok
        assert whole == UNTOUCHED * len(whole)
        assert b.context.stats()["causes"][counter] == 1
        assert a.qp.state is QpState.ERROR
        assert eventually(lambda: b.qp.state is QpState.ERROR)
        for end in (a, b):
            event = end.context.async_events.get(20)
            assert (event.type, event.qp_num) == (AsyncEventType.QP_FATAL, end.qp.qp_num)
            assert event.reason


def test_a_message_that_is_only_partly_allowed_stops_at_the_edge():
    with connected() as (a, b):
        whole, view = guarded(10_000, 20_000)
        target = b.region(view).remote()
        local = a.region(bytearray(b"\xff" * 30_000))
        a.qp.post_send(SendWR(sg_list=[local.sge()], remote_addr=target.addr, rkey=target.rkey))
        assert a.send_cq.take(1, 20)[0].status is WcStatus.REM_ACCESS_ERR
        assert whole[:20_000] == UNTOUCHED * 20_000
        assert whole[30_000:] == UNTOUCHED * 20_000


def test_a_queue_pair_without_remote_write_refuses_writes_that_the_region_allows():
    with device().open() as one, device().open() as two:
        a, b = make_end(one), make_end(two)
        b.qp.modify(QpState.INIT, access=AccessFlags.NONE)
        bring_up(a, b)
        whole, view = guarded()
        a.qp.write(b"x", b.region(view).remote())
        assert a.send_cq.take(1, 20)[0].status is WcStatus.REM_ACCESS_ERR
        assert whole == UNTOUCHED * len(whole)


def test_keys_are_not_to_be_guessed_from_one_another():
    with device().open() as context:
        pd = context.alloc_pd()
        keys = [pd.register(bytearray(1)).rkey for _ in range(500)]
    assert len(set(keys)) == 500
    steps = {(later - earlier) % (1 << 32) for earlier, later in itertools.pairwise(keys)}
    assert len(steps) > 490
    # As many high bits set as in random numbers, within ten standard deviations.
    assert 250 - 112 < sum(key >> 31 for key in keys) < 250 + 112


LOCAL = {
    "unknown key": lambda a: Sge(a.region(bytearray(8)).addr, 8, 0xDEAD),
    "too long": lambda a: a.region(bytearray(8)).sge()._replace(length=9),
    "before": lambda a: (lambda s: s._replace(addr=s.addr - 1))(a.region(bytearray(8)).sge()),
    "another domain": lambda a: a.context.alloc_pd().register(bytearray(8)).sge(),
}


@pytest.mark.parametrize("sge", LOCAL.values(), ids=LOCAL)
def test_a_scatter_list_of_foreign_memory_completes_with_a_protection_error(sge):
    with connected() as (a, b):
        whole, view = guarded()
        target = b.region(view).remote()
        a.qp.post_send(SendWR(sg_list=[sge(a)], remote_addr=target.addr, rkey=target.rkey, wr_id=5))
        (done,) = a.send_cq.take(1, 20)
        assert (done.wr_id, done.status) == (5, WcStatus.LOC_PROT_ERR)
        assert a.qp.state is QpState.ERROR
        assert whole == UNTOUCHED * len(whole)


def test_an_immediate_without_a_receive_is_an_operational_error():
    with connected() as (a, b):
        a.qp.write(b"x", b.region(bytearray(1)).remote(), imm_data=1)
        assert a.send_cq.take(1, 20)[0].status is WcStatus.REM_OP_ERR


def test_a_key_is_needed_only_where_bytes_are_written():
    with connected() as (a, b):
        a.qp.write(b"", RemoteBuffer(0xDEAD, 0, 0xBEEF), wr_id=1)
        assert a.send_cq.take(1, 20)[0].ok
        assert b.qp.state is QpState.RTS


def test_packets_of_a_stranger_are_dropped_without_an_answer():
    with connected() as (a, b), device().open() as third:
        stranger = make_end(third)
        whole, view = guarded()
        target = b.region(view).remote()
        stranger.qp.modify(QpState.INIT)
        stranger.qp.modify(QpState.RTR, dest_qp_num=b.qp.qp_num, rq_psn=0, remote=b.context.addresses, caps=0)
        stranger.qp.modify(QpState.RTS, sq_psn=0x111111, timeout=8, linear_cnt=2, exp_cnt=0)
        stranger.qp.write(b"\xff" * 64, target)
        assert stranger.send_cq.take(1, 60)[0].status is WcStatus.RETRY_EXC_ERR
        assert whole == UNTOUCHED * len(whole)
        assert b.context.stats()["causes"]["rx_wrong_peer"] > 0
        assert stranger.context.stats()["ports"][0]["rx_packets"] == 0
        a.qp.write(b"friend", target)
        assert a.send_cq.take(1, 20)[0].ok
        assert bytes(view[:6]) == b"friend"


def test_once_a_region_is_closed_its_memory_stays_as_it_is_though_data_are_on_their_way():
    dice = random.Random(5)
    for _ in range(12):
        with connected() as (a, b):
            target = bytearray(1 << 20)
            remote = b.region(target)
            local = a.region(bytearray(b"\xff" * (1 << 20)))
            for _ in range(16):
                a.qp.write(local, remote.remote())
            for _ in range(dice.randrange(4000)):
                pass
            remote.close()
            frozen = bytes(target)
            last = a.send_cq.take(16, 20)[-1]
            assert last.status in (WcStatus.REM_ACCESS_ERR, WcStatus.WR_FLUSH_ERR, WcStatus.SUCCESS)
            assert bytes(target) == frozen


def test_closing_the_source_of_sends_under_way_ends_them_with_a_protection_error():
    with connected() as (a, b):
        remote = b.region(bytearray(8 << 20)).remote()
        local = a.region(bytearray(8 << 20))
        for i in range(64):
            a.qp.write(local, remote, wr_id=i)
        local.close()
        gc.collect()
        done = a.send_cq.take(64, 60)
        assert [wc.wr_id for wc in done] == list(range(64))
        # One was being split into packets and has the reason; requests without acknowledgment are flushed.
        bad = [wc.status for wc in done if not wc.ok]
        assert bad.count(WcStatus.LOC_PROT_ERR) == 1
        assert set(bad) <= {WcStatus.LOC_PROT_ERR, WcStatus.WR_FLUSH_ERR}


def test_a_destroyed_queue_pair_is_unknown_to_packets_for_it():
    with connected() as (a, b):
        whole, view = guarded()
        target = b.region(view).remote()
        b.qp.close()
        a.qp.post_send(SendWR(sg_list=[b"x"], remote_addr=target.addr, rkey=target.rkey, send_flags=10))
        assert eventually(lambda: b.context.stats()["causes"]["rx_unknown_qp"] > 0)
        assert whole == UNTOUCHED * len(whole)
