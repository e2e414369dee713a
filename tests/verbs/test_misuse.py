"""Wrong calls are refused with a message that names the thing, the value and what is allowed."""

import ctypes
import mmap
import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

from openmrc import errors
from openmrc.verbs import (
    AccessFlags,
    Device,
    Port,
    QpAttr,
    QpCap,
    QpHint,
    QpState,
    RemoteBuffer,
    SendFlags,
    SendWR,
    Sge,
    WcStatus,
    WrOpcode,
)
from tests.helpers.ends import SMALL, connected, device, make_end
from tests.helpers.repository import ROOT


@pytest.fixture(scope="module")
def pair():
    with connected(cap=SMALL) as ends:
        yield ends


@pytest.fixture(scope="module")
def lone():
    """An end whose queue pair stays in RESET."""
    with device().open() as context:
        yield make_end(context, cap=SMALL)


def refuse(error, words, call):
    """``call`` raises ``error``, which is an openmrc.Error whose message has all of ``words``."""
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, errors.Error)
    for word in words.split("|"):
        assert re.search(word, str(caught.value)), f"{str(caught.value)!r} should say {word!r}"


UNREGISTRABLE = {
    "read-only": (lambda: b"constant", "bytes is read-only|AccessFlags.NONE"),
    "read-only view": (lambda: memoryview(bytearray(4)).toreadonly(), "memoryview is read-only"),
    "read-only map": (lambda: mmap.mmap(-1, 4096, access=mmap.ACCESS_READ), "mmap is read-only"),
    "every other byte": (lambda: memoryview(bytearray(8))[::2], r"not C-contiguous|\[4\]|\[2\]"),
    "Fortran order": (lambda: np.zeros((2, 3), order="F"), r"ndarray|not C-contiguous|\[2, 3\]"),
    "Python objects": (lambda: np.array([object()] * 8), "ndarray|references to Python objects"),
    "a view of Python objects": (lambda: memoryview(np.array([None])), "references to Python objects"),
    "objects as bytes": (lambda: memoryview(np.array([None])).cast("B"), "references to Python objects"),
    "records with an object": (
        lambda: np.zeros(2, [("n", "i8"), ("o", "O")]),
        "references to Python objects",
    ),
    "pointers of ctypes": (lambda: memoryview((ctypes.c_void_p * 4).from_buffer(bytearray(32))), "addresses"),
    "strings of ctypes": (lambda: memoryview((ctypes.c_char_p * 4).from_buffer(bytearray(32))), "addresses"),
    "resizable memory of ctypes": (lambda: ctypes.create_string_buffer(8), "can be resized|from_buffer"),
    "a part of resizable memory": (lambda: memoryview(ctypes.create_string_buffer(8))[2:], "can be resized"),
    "a number": (lambda: 17, "int gives no buffer"),
    "a list": (lambda: [1, 2], "list gives no buffer"),
}


@pytest.mark.parametrize(("make", "words"), UNREGISTRABLE.values(), ids=UNREGISTRABLE)
def test_a_buffer_that_the_network_cannot_write_is_refused(lone, make, words):
    refuse(errors.RegistrationError, words, lambda: lone.pd.register(make()))


def test_a_buffer_whose_names_of_fields_look_like_objects_is_registered(lone):
    records = np.zeros(3, [("O", "i8"), ("P", "c16"), ("&z", "f4")])
    lone.pd.register(records).close()


def test_a_buffer_of_ctypes_over_memory_that_is_pinned_is_registered(lone):
    owner = bytearray(8)
    with lone.pd.register(memoryview((ctypes.c_char * 8).from_buffer(owner))), pytest.raises(BufferError):
        owner.append(0)


def test_no_resize_moves_a_registered_buffer(lone):
    array, mapped = np.zeros(8), mmap.mmap(-1, 4096)
    with lone.pd.register(array), lone.pd.register(mapped):
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(1 << 20, refcheck=False)
        with pytest.raises(BufferError):
            mapped.resize(8192)
        with pytest.raises(BufferError):
            mapped.close()
    array.resize(1 << 20, refcheck=False)
    with lone.pd.register(memoryview(array)[4:]), pytest.raises(ValueError, match="cannot resize"):
        array.resize(8, refcheck=False)


def test_a_mapping_of_a_file_that_was_truncated_is_refused(lone, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 8192)
        lone.pd.register(mapped).close()
        file.truncate(4096)
        refuse(errors.ArgumentError, "8192 bytes|truncated", lambda: lone.pd.register(mapped))
        lone.pd.register(memoryview(mapped)[:4096]).close()


def test_a_file_truncated_under_its_region_is_an_error_of_the_write_and_not_of_the_process(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    code = f"""
        import mmap, sys
        sys.path.insert(0, {str(ROOT)!r})
        from openmrc.verbs import AccessFlags
        from tests.helpers.ends import connected
        for end in ("target", "source"):
            with open({str(path)!r}, "r+b") as file, connected() as (a, b):
                file.truncate(8192)
                mapped = mmap.mmap(file.fileno(), 8192)
                if end == "target":
                    target = b.region(mapped)
                    a.qp.write(b"before the end", target.remote(0))
                    assert a.send_cq.take(1, 20)[0].ok and mapped[:14] == b"before the end"
                    file.truncate(4096)
                    a.qp.write(b"beyond the end", target.remote(4096))
                    assert a.send_cq.take(1, 20)[0].status.name == "REM_ACCESS_ERR"
                    assert b.context.stats()["causes"]["refused_bounds"] == 1
                else:
                    source, target = a.region(mapped, AccessFlags.NONE), b.region(bytearray(8192))
                    a.qp.write(source, target.remote())
                    assert a.send_cq.take(1, 20)[0].ok and target.buffer[:14] == b"before the end"
                    file.truncate(4096)
                    a.qp.write(source, target.remote())
                    assert a.send_cq.take(1, 20)[0].status.name == "LOC_PROT_ERR"
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr


class Tensor:
    """The part of a PyTorch tensor that is used before its bytes are."""

    shape, data_ptr = (2, 3), None

    def __init__(self, kind, *, contiguous=True):
        self.device = SimpleNamespace(type=kind, __str__=lambda: kind)
        self.is_contiguous = lambda: contiguous

    def stride(self):
        return (1, 2)


def test_a_tensor_that_is_not_in_one_piece_of_main_memory_is_refused(lone):
    refuse(
        errors.RegistrationError,
        r"only memory of the host|\.cpu\(\)",
        lambda: lone.pd.register(Tensor("cuda")),
    )
    refuse(
        errors.RegistrationError,
        r"shape \(2, 3\)|strides \(1, 2\)|\.contiguous\(\)",
        lambda: lone.pd.register(Tensor("cpu", contiguous=False)),
    )


def test_a_tensor_of_pytorch_is_registered_where_it_is():
    torch = pytest.importorskip("torch")
    with connected() as (a, b):
        source, target = torch.arange(1000).to(torch.bfloat16), torch.zeros(1000, dtype=torch.bfloat16)
        a.qp.write(a.region(source), b.region(target).remote())
        assert a.send_cq.take(1, 20)[0].ok
        assert torch.equal(source, target)


def test_remote_write_without_local_write_is_refused(lone):
    refuse(
        errors.ArgumentError,
        "REMOTE_WRITE needs LOCAL_WRITE",
        lambda: lone.pd.register(bytearray(1), AccessFlags.REMOTE_WRITE),
    )
    refuse(errors.ArgumentError, "access is 8", lambda: lone.pd.register(bytearray(1), 8))


REQUESTS = {
    "immediate too large": (SendWR(imm_data=1 << 32), r"imm_data is 4294967296: 0 to 2\^32 - 1"),
    "negative wr_id": (SendWR(wr_id=-1), "wr_id is -1"),
    "rkey too large": (SendWR(rkey=1 << 32), "rkey is 4294967296"),
    "address is text": (SendWR(remote_addr="x"), "remote_addr is 'x'"),
    "too many pieces": (SendWR(sg_list=[Sge(0, 0, 0)] * 5), "5 segments|takes 4"),
    "too much inline": (
        SendWR(sg_list=[bytes(300)], send_flags=SendFlags.INLINE),
        "300 bytes inline|takes 256",
    ),
    "too long": (SendWR(sg_list=[Sge(0, 0xFFFFFFFF, 0)] * 2), "8589934590 bytes|longest"),
    "bytes without INLINE": (SendWR(sg_list=[b"abc"]), "Sge|SendFlags.INLINE"),
    "Sge with INLINE": (
        SendWR(sg_list=[Sge(1, 2, 3)], send_flags=SendFlags.INLINE),
        "bytes-like objects, not Sge",
    ),
    "length too large": (SendWR(sg_list=[(0, 1 << 32, 0)]), "length of an Sge is 4294967296"),
    "immediate that the opcode has not": (SendWR(opcode=WrOpcode.RDMA_WRITE, imm_data=1), "no imm_data"),
    "opcode without its immediate": (SendWR(opcode=WrOpcode.RDMA_WRITE_WITH_IMM), "needs imm_data"),
    "opcode of ibverbs that MRC has not": (SendWR(opcode=4), "opcode 4"),
}


@pytest.mark.parametrize(("request_", "words"), REQUESTS.values(), ids=REQUESTS)
def test_a_request_that_cannot_be_executed_is_refused_and_with_it_the_list(pair, request_, words):
    a, _ = pair
    refuse(errors.ArgumentError, words, lambda: a.qp.post_send([SendWR(sg_list=[]), request_]))
    assert a.qp.send_outstanding == 0


POST_WRITES = {
    "no count": ({"length": 1}, "needs a count"),
    "counts disagree": ({"length": [1, 2], "offset": [0]}, "length says 2 writes, offset has 1"),
    "beyond the region": (
        {"length": 64, "count": 2, "stride": 1},
        "write 1: 64 bytes at offset 1|memory region of 64",
    ),
    "beyond the target": ({"length": 64, "count": 1, "remote_offset": 1}, "remote buffer of 64"),
    "before the region": ({"length": 1, "count": 2, "stride": -1}, "write 1: 1 bytes at offset -1"),
    "negative length": ({"length": -1, "count": 1}, "length of write 0 is -1"),
    "fractions": ({"length": np.array([1.5])}, "whole numbers"),
    "two dimensions": ({"length": np.zeros((2, 2), np.int64)}, "2 dimensions"),
    "more than the queue": ({"length": 1, "count": 5}, "5 writes|0 to 4"),
    "signal_every 0": ({"length": 1, "count": 1, "signal_every": 0}, "signal_every is 0"),
}


@pytest.mark.parametrize(("arguments", "words"), POST_WRITES.values(), ids=POST_WRITES)
def test_post_writes_refuses_what_does_not_fit(pair, arguments, words):
    a, b = pair
    with a.region(bytearray(64)) as local, b.region(bytearray(64)) as remote:
        refuse(errors.ArgumentError, words, lambda: a.qp.post_writes(local, remote.remote(), **arguments))
    assert a.qp.send_outstanding == 0


def test_a_part_that_reaches_beyond_its_buffer_is_refused(pair):
    a, b = pair
    with a.region(bytearray(64)) as local, b.region(bytearray(32)) as remote:
        refuse(errors.ArgumentError, "65 bytes at offset 0|64 bytes|at most 64", lambda: local.sge(0, 65))
        refuse(errors.ArgumentError, "offset 65|0 to 64", lambda: local.sge(65))
        refuse(errors.ArgumentError, "offset -1", lambda: local.remote(-1))
        refuse(errors.ArgumentError, "at most 2", lambda: remote.remote().at(30, 3))
        refuse(errors.ArgumentError, "64 bytes at offset 0|32", lambda: a.qp.write(local, remote.remote()))


def test_a_closed_region_is_refused_by_name(pair):
    a, _ = pair
    region = a.region(bytearray(4))
    region.close()
    region.close()
    place = RemoteBuffer(0, 4, 0)
    for call in (region.sge, region.remote, lambda: a.qp.write(region, place)):
        refuse(errors.ClosedError, f"0x{region.lkey:08x} is closed", call)
    refuse(errors.ClosedError, "is closed", lambda: a.qp.post_writes(region, place, length=1, count=1))
    assert region.buffer is None


STEPS = {
    "RESET to RTS": (QpState.RTS, {}, errors.StateError, "from RESET to RTS|INIT or ERROR"),
    "RESET to RTR": (QpState.RTR, {"rq_psn": 0}, errors.StateError, "from RESET to RTR"),
    "RESET to INIT with too much": (QpState.INIT, {"sq_psn": 0}, errors.StateError, "does not take sq_psn"),
    "no such attribute": (QpState.INIT, {"psn": 0}, errors.ArgumentError, "no attribute psn|sq_psn"),
    "no such state": (5, {}, errors.ArgumentError, "5 is no state"),
    "PSN too large": (
        QpState.RTS,
        {"sq_psn": 1 << 32},
        errors.ArgumentError,
        "sq_psn is 4294967296|16777215",
    ),
    "address without port": (
        QpState.RTR,
        {"remote": ["127.0.0.1"]},
        errors.ArgumentError,
        "remote is|address, UDP",
    ),
    "no address": (QpState.RTR, {"remote": [("lo", 1)]}, errors.ArgumentError, '"lo" is not an IPv4 or IPv6'),
}


@pytest.mark.parametrize(("state", "attributes", "error", "words"), STEPS.values(), ids=STEPS)
def test_a_step_that_does_not_exist_is_refused_and_changes_nothing(lone, state, attributes, error, words):
    refuse(error, words, lambda: lone.qp.modify(state, **attributes))
    assert lone.qp.state is QpState.RESET


RANGES = {
    "path_mtu": (QpState.RTR, {"path_mtu": 255}, "path_mtu is 255|256 to 8192"),
    "dest_qp_num": (QpState.RTR, {"dest_qp_num": 0}, "dest_qp_num is 0"),
    "mpr_dest": (QpState.RTR, {"mpr_dest": 0}, "mpr_dest is 0"),
    "rq_psn": (QpState.RTR, {"rq_psn": 1 << 24}, "rq_psn|0 to 16777215|16777216"),
    "no address at all": (QpState.RTR, {"remote": []}, "at least one port"),
    "other family": (QpState.RTR, {"remote": [("::1", 4791)]}, "::1|cannot be reached"),
    "EV profile": (QpState.RTR, {"ev_profile_id": 9}, "EV profile 9"),
    "CC profile": (QpState.RTR, {"cc_profile_id": 9}, "congestion control profile 9"),
    "timeout": (QpState.RTS, {"timeout": 25}, "timeout|25|0 to 24"),
    "linear_cnt": (QpState.RTS, {"linear_cnt": 8}, "linear_cnt is 8|0 to 7"),
    "mpr": (QpState.RTS, {"mpr": 0}, "mpr is 0"),
    "keepalive_ms": (QpState.RTS, {"keepalive_ms": -1}, "keepalive_ms is -1|0 to 4294967295"),
}


@pytest.mark.parametrize(("state", "attributes", "words"), RANGES.values(), ids=RANGES)
def test_an_attribute_out_of_range_is_refused_and_changes_nothing(state, attributes, words):
    with device().open() as context:
        end = make_end(context, cap=SMALL)
        end.qp.modify(QpState.INIT)
        good = {"dest_qp_num": 77, "rq_psn": 0, "remote": [("127.9.9.9", 4791)]}
        if state is QpState.RTS:
            end.qp.modify(QpState.RTR, QpAttr(**good))
            good = {"sq_psn": 0}
        before = end.qp.query()
        refuse(errors.ArgumentError, words, lambda: end.qp.modify(state, **(good | attributes)))
        assert end.qp.query() == before
        end.qp.modify(state, **good)


def test_posting_in_a_state_that_does_not_take_it_is_refused(lone):
    number = f"0x{lone.qp.qp_num:06x}"
    refuse(
        errors.StateError, f"post_send needs|RTS|{number} is in RESET", lambda: lone.qp.post_send(SendWR())
    )
    refuse(errors.StateError, f"post_recv needs|INIT|{number} is in RESET", lambda: lone.qp.post_recv(1))


def test_a_full_queue_takes_all_of_a_list_or_none():
    with connected(cap=SMALL) as (a, b):
        b.context.close()
        refuse(errors.QueueFullError, "send queue|holds 4", lambda: a.qp.post_send([SendWR()] * 5))
        assert a.qp.send_outstanding == 0
        a.qp.post_send([SendWR()] * 3)
        refuse(errors.QueueFullError, "send queue|holds 4, 3 are", lambda: a.qp.post_send([SendWR()] * 2))
        refuse(
            errors.QueueFullError,
            "send queue",
            lambda: a.qp.post_writes(a.region(bytearray(8)), RemoteBuffer(0, 8, 1), length=1, count=2),
        )
        a.qp.post_send(SendWR())
        assert a.qp.send_outstanding == 4
        a.qp.post_recv(4)
        refuse(errors.QueueFullError, "receive queue|holds 4, 4 are", lambda: a.qp.post_recv(1))
        refuse(errors.QueueFullError, "receive queue", lambda: a.qp.post_recv(10**9))


def test_in_error_everything_outstanding_and_new_is_flushed():
    with connected(cap=SMALL) as (a, b):
        b.context.close()
        a.qp.post_recv(2)
        a.qp.post_send([SendWR(wr_id=i, send_flags=SendFlags.NONE) for i in range(3)])
        a.qp.modify(QpState.ERROR)
        a.qp.post_send(SendWR(wr_id=3))
        a.qp.post_recv(1)
        flushed = a.send_cq.take(4, 20)
        assert [(wc.wr_id, wc.status) for wc in flushed] == [(i, WcStatus.WR_FLUSH_ERR) for i in range(4)]
        assert {wc.status for wc in a.recv_cq.take(3, 20)} == {WcStatus.WR_FLUSH_ERR}
        a.qp.modify(QpState.RESET)
        assert a.qp.query().attr == QpAttr()


CAPACITIES = {
    "max_send_wr": (0, 32769),
    "max_recv_wr": (-1, 65537),
    "max_send_sge": (0, 17),
    "max_inline_data": (-1, 4097),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in CAPACITIES.items() for v in values])
def test_a_capacity_out_of_range_is_refused(lone, name, value):
    refuse(
        errors.ArgumentError,
        f"{name}|{value}",
        lambda: lone.pd.create_qp(lone.send_cq, cap=QpCap(**{name: value})),
    )


def test_a_completion_queue_of_impossible_size_is_refused(lone):
    for cqe in (0, -1, (1 << 22) + 1):
        refuse(errors.ArgumentError, f"1 to 4194304|{cqe}", lambda cqe=cqe: lone.context.create_cq(cqe))


def test_a_hint_of_nobody_is_refused():
    refuse(errors.ArgumentError, "num_send_peers|at least 1|0", lambda: QpHint(num_send_peers=0))


DEVICES = {
    "no ports": (lambda: Device(ports=[]), errors.ArgumentError, "1 to 16 ports, not 0"),
    "no address": (
        lambda: Device.from_addresses("somewhere"),
        errors.ArgumentError,
        '"somewhere" is not an IPv4',
    ),
    "one address twice": (
        lambda: Device.from_addresses("127.0.0.1", "127.0.0.1"),
        errors.ArgumentError,
        "two ports",
    ),
    "both families": (
        lambda: Device.from_addresses("127.0.0.1", "::1"),
        errors.ArgumentError,
        "must be IPv4, or all IPv6",
    ),
    "UDP port": (lambda: Device(ports=[Port("127.0.0.1", 65536)]), errors.ArgumentError, "udp_port is 65536"),
    "burst": (lambda: device(ev_burst=0), errors.ArgumentError, "ev_burst"),
    "answer to a PSN": (lambda: device(oor="loud"), errors.ArgumentError, "oor is|nack or silent"),
    "room to send": (lambda: device(can_send="all"), errors.ArgumentError, "can_send is|mtu or any"),
    "NAK of the limit": (lambda: device(wimm_nak_syndrome=0x60), errors.ArgumentError, "0x65 or 0x61"),
    "first bit of a port mask": (lambda: device(port_mask_base=2), errors.ArgumentError, "0 or 1"),
    "turns": (lambda: device(rotation_turns=-1), errors.ArgumentError, "rotation_turns is -1"),
    "no time": (lambda: device(base_rtt_us=-1), errors.ArgumentError, "base_rtt_us is -1"),
    "not a number": (lambda: device(base_rtt_us=float("nan")), errors.ArgumentError, "base_rtt_us is NaN"),
    "no list of prefixes": (
        lambda: device(ep_ops=["10.1.0.0/33"]),
        errors.ArgumentError,
        r"10\.1\.0\.0/33|any, peers, off or a list of prefixes is allowed",
    ),
    "no class of packets": (
        lambda: device(dscp={"controls": 46}),
        errors.ArgumentError,
        "dscp is {controls = 46}: code points by class",
    ),
    "no interface": (
        lambda: Device.from_interfaces("nope0"),
        errors.DeviceError,
        "no interface 'nope0'; this host has",
    ),
    "somebody else's address": (
        lambda: Device.from_addresses("192.0.2.1").open(),
        errors.DeviceError,
        "192.0.2.1",
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), DEVICES.values(), ids=DEVICES)
def test_a_device_that_cannot_be_is_refused(make, error, words):
    refuse(error, words, make)


def test_an_address_in_use_is_named():
    description = device()
    with description.open():
        refuse(errors.DeviceError, f"{description.ports[0].addr}|4791", description.open)
    description.open().close()


def test_what_belongs_to_another_context_is_refused(lone):
    with device().open() as other, other.create_cq() as cq:
        refuse(errors.ArgumentError, "another context", lambda: lone.pd.create_qp(cq))


def test_nothing_works_on_what_is_closed_and_closing_twice_is_harmless():
    with connected() as (a, _):
        region = a.region(bytearray(8))
        a.qp.close()
        a.qp.close()
        for call in (
            lambda: a.qp.post_send(SendWR()),
            lambda: a.qp.post_recv(1),
            lambda: a.qp.modify(QpState.ERROR),
            a.qp.query,
            a.qp.stats,
            a.qp.ev_states,
        ):
            refuse(errors.ClosedError, "closed", call)
        a.send_cq.close()
        a.send_cq.close()
        refuse(errors.ClosedError, "completion queue", a.send_cq.poll)
        refuse(errors.ClosedError, "completion queue", lambda: a.send_cq.wait(1))
        refuse(errors.ClosedError, "completion queue", lambda: a.pd.create_qp(a.send_cq))
        a.pd.close()
        a.pd.close()
        assert region.closed
        refuse(errors.ClosedError, "protection domain", lambda: a.pd.register(bytearray(1)))
        a.context.close()
        a.context.close()
        for call in (a.context.alloc_pd, a.context.create_cq, a.context.stats, a.context.ports_up):
            refuse(errors.ClosedError, "closed", call)


def test_a_completion_queue_in_use_is_not_closed():
    with connected() as (a, _):
        refuse(errors.StateError, f"0x{a.qp.qp_num:06x}: close that first", a.send_cq.close)
        a.qp.write(b"", RemoteBuffer(0, 0, 0))
        assert a.send_cq.take(1, 20)[0].ok
