"""The guarantees of verbs without faults: bytes arrive, completions and immediates are in order."""

import array
import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc.verbs import (
    AccessFlags,
    QpCap,
    RecvWR,
    SendFlags,
    SendWR,
    WcOpcode,
    WcStatus,
    WrOpcode,
)
from tests.helpers.ends import connected


def mapped(size):
    return mmap.mmap(-1, size)


BUFFERS = {
    "bytearray": bytearray,
    "memoryview": lambda size: memoryview(bytearray(size)),
    "mmap": mapped,
    "numpy bytes": lambda size: np.zeros(size, np.uint8),
    "numpy doubles in two dimensions": lambda size: np.zeros((size // 80, 10)),
    "array": lambda size: array.array("I", [0] * (size // 4)),
}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS)
def test_a_write_arrives_whatever_the_buffers_are_made_of(make):
    size = 80_000
    pattern = np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()
    with connected() as (a, b):
        source, target = make(size), make(size)
        memoryview(source).cast("B")[:] = pattern
        with a.region(source) as local, b.region(target) as remote:
            assert (local.length, len(local)) == (size, size)
            a.qp.write(local, remote.remote(), wr_id=7)
            (done,) = a.send_cq.take(1, 20)
        assert done == (7, WcStatus.SUCCESS, WcOpcode.RDMA_WRITE, size, None, a.qp.qp_num)
        assert done.ok
        assert bytes(memoryview(target).cast("B")) == pattern


def test_a_read_only_buffer_can_be_the_source():
    with connected() as (a, b):
        target = bytearray(5)
        source = a.region(b"hello", AccessFlags.NONE)
        a.qp.write(source, b.region(target).remote())
        assert a.send_cq.take(1, 20)[0].ok
        assert target == b"hello"


@settings(max_examples=40)
@given(data=st.data())
def test_scattered_pieces_arrive_as_one_message_and_nothing_else_changes(data):
    pieces = data.draw(
        st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 9000)), min_size=1, max_size=4)
    )
    source = bytes(np.random.default_rng(2).integers(0, 256, 20_000, np.uint8))
    total = sum(length for _, length in pieces)
    before, after = data.draw(st.integers(0, 100)), data.draw(st.integers(0, 100))
    target = bytearray(b"\xaa" * (before + total + after))
    a, b = _shared_pair()
    with a.region(bytearray(source)) as local, b.region(target) as remote:
        place = remote.remote(before, total)
        a.qp.post_send(
            SendWR(sg_list=[local.sge(*piece) for piece in pieces], remote_addr=place.addr, rkey=place.rkey)
        )
        assert a.send_cq.take(1, 20)[0].ok
    expected = b"".join(source[offset : offset + length] for offset, length in pieces)
    assert target == b"\xaa" * before + expected + b"\xaa" * after


_pairs = []


def _shared_pair():
    """One pair for all examples of a property: opening devices takes longer than an example."""
    if not _pairs:
        manager = connected()
        _pairs.append((manager, manager.__enter__()))
    return _pairs[0][1]


@pytest.fixture(scope="module", autouse=True)
def _close_shared_pair():
    yield
    while _pairs:
        _pairs.pop()[0].__exit__(None, None, None)


def test_inline_data_are_copied_while_posting_and_need_no_registration():
    with connected() as (a, b):
        target = bytearray(12)
        remote = b.region(target).remote()
        words = bytearray(b"abcdef")
        a.qp.post_send(
            SendWR(
                sg_list=[words, b"ghi", memoryview(b"123456")[::2]],
                remote_addr=remote.addr,
                rkey=remote.rkey,
                send_flags=SendFlags.INLINE | SendFlags.SIGNALED,
            )
        )
        words[:] = b"xxxxxx"
        assert a.send_cq.take(1, 20)[0].ok
        assert target == b"abcdefghi135"


def test_immediates_come_in_order_and_after_every_write_before_them():
    rounds, size = 40, 30_000
    with connected(planes=4) as (a, b):
        source = np.zeros(size, np.uint8)
        target = np.zeros((rounds, size), np.uint8)
        local, remote = a.region(source), b.region(target).remote()
        b.qp.post_recv([RecvWR(wr_id=1000 + i) for i in range(rounds)])
        for i in range(rounds):
            source[:] = i + 1
            a.qp.write(local, remote.at(i * size))
            a.qp.write(b"", remote, imm_data=i)
            a.send_cq.take(2, 20)
            (done,) = b.recv_cq.take(1, 20)
            assert (done.wr_id, done.imm_data, done.byte_len) == (1000 + i, i, 0)
            assert done.opcode is WcOpcode.RECV_RDMA_WITH_IMM
            assert (target[i] == i + 1).all()


def test_many_immediates_in_flight_keep_their_order():
    count = 300
    with connected(planes=4, cap=QpCap(max_send_wr=count)) as (a, b):
        local, remote = a.region(bytearray(9000)), b.region(bytearray(9000)).remote()
        b.qp.post_recv(RecvWR(i) for i in range(count))
        a.qp.post_send(
            SendWR(
                sg_list=[local.sge(0, i * 30)], remote_addr=remote.addr, rkey=remote.rkey, imm_data=i, wr_id=i
            )
            for i in range(count)
        )
        received = b.recv_cq.take(count, 20)
        assert [(wc.wr_id, wc.imm_data, wc.byte_len) for wc in received] == [
            (i, i, i * 30) for i in range(count)
        ]
        assert [wc.wr_id for wc in a.send_cq.take(count, 20)] == list(range(count))


def test_only_signaled_sends_complete_unless_all_do():
    with connected() as (a, b):
        remote = b.region(bytearray(64)).remote()
        for i in range(10):
            a.qp.write(
                b"x", remote, wr_id=i, send_flags=SendFlags.SIGNALED if i in (4, 9) else SendFlags.NONE
            )
        assert [wc.wr_id for wc in a.send_cq.take(2, 20)] == [4, 9]
        assert a.qp.send_outstanding == 0
        assert a.send_cq.poll() == []
    with connected(sq_sig_all=True) as (a, b):
        a.qp.write(b"x", b.region(bytearray(1)).remote(), wr_id=3, send_flags=SendFlags.NONE)
        assert a.send_cq.take(1, 20)[0].wr_id == 3


def test_post_writes_with_strides_transposes_what_it_copies():
    rows, size = 100, 128
    with connected(planes=4) as (a, b):
        source = np.random.default_rng(3).integers(0, 256, (rows, size), np.uint8)
        target = np.zeros((rows, size), np.uint8)
        count = a.qp.post_writes(
            a.region(source),
            b.region(target).remote(),
            length=size,
            count=rows,
            offset=(rows - 1) * size,
            stride=-size,
            remote_stride=size,
            wr_id=50,
        )
        assert count == rows
        assert a.send_cq.take(1, 20)[0].wr_id == 50 + rows - 1
        assert (target == source[::-1]).all()


@pytest.mark.parametrize("kind", [list, np.array, lambda numbers: np.array(numbers, np.int32)])
def test_post_writes_takes_offsets_and_lengths_from_sequences(kind):
    lengths, offsets = [0, 1, 4096, 5000, 13], [9, 100, 200, 0, 6000]
    places = [0, 0, 1, 4097, 9097]
    source = np.random.default_rng(4).integers(0, 256, 8000, np.uint8)
    with connected() as (a, b):
        target = bytearray(9110)
        posted = a.qp.post_writes(
            a.region(source),
            b.region(target).remote(),
            length=kind(lengths),
            offset=kind(offsets),
            remote_offset=kind(places),
            signal_every=1,
        )
        assert posted == 5
        assert [wc.byte_len for wc in a.send_cq.take(5, 20)] == lengths
    expected = b"".join(source[o : o + n].tobytes() for o, n in zip(offsets, lengths, strict=True))
    assert target == expected


def test_an_opcode_may_be_named_as_in_ibverbs():
    with connected() as (a, b):
        remote = b.region(bytearray(1)).remote()
        b.qp.post_recv(1)
        for opcode, imm in ((WrOpcode.RDMA_WRITE, None), (WrOpcode.RDMA_WRITE_WITH_IMM, 0xFFFFFFFF)):
            a.qp.post_send(SendWR(opcode=opcode, imm_data=imm, remote_addr=remote.addr, rkey=remote.rkey))
        assert all(wc.ok for wc in a.send_cq.take(2, 20))
        assert b.recv_cq.take(1, 20)[0].imm_data == 0xFFFFFFFF


def test_one_application_drives_both_engines_while_polling():
    with connected() as (a, b), a.context.polling(), b.context.polling():
        target = bytearray(100_000)
        a.qp.write(a.region(bytearray(b"z" * 100_000)), b.region(target).remote())
        done = []
        while not done:
            b.context.progress()
            done = a.send_cq.poll()
        assert done[0].ok
        assert target == b"z" * 100_000


def test_counters_tell_what_went_over_which_plane():
    with connected(planes=4) as (a, b):
        a.qp.write(a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote())
        a.send_cq.take(1, 20)
        sent = [port["tx_bytes"] for port in a.context.stats()["ports"]]
        assert sum(sent) > 1 << 20
        assert min(sent) > 0
        paths = a.context.path_stats()
        assert sum(path["tx_bytes"] for path in paths) == sum(sent)
        assert a.qp.stats()["data_packets"] >= 256
        assert {port for port, _, _ in a.qp.ev_states()} == {0, 1, 2, 3}
        assert a.qp.ports_up() == [0, 1, 2, 3]
        assert not any(b.context.stats()["causes"].values())
