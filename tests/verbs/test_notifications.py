"""Completion channels, solicited events, hints and device attributes."""

import select

import pytest

from openmrc.errors import ArgumentError, ClosedError, StateError, UnsupportedError
from openmrc.verbs import Capabilities, QpCap, QpHint, QpState, SendFlags, SendWR, WcStatus
from tests.helpers.ends import bring_up, connected, device, eventually, make_end

SOLICITED = SendFlags.SIGNALED | SendFlags.SOLICITED


def immediate(a, b, flags=SendFlags.SIGNALED):
    """A write with immediate from one end to the other, without data."""
    b.qp.post_recv(1)
    a.qp.post_send(SendWR(imm_data=1, send_flags=flags))


def test_a_channel_says_which_of_its_queues_has_an_event():
    with device().open() as context:
        channel = context.create_comp_channel()
        first, second = (context.create_cq(channel=channel, cq_context=name) for name in ("first", "second"))
        assert channel.get_event(timeout=0) is None
        pd = context.alloc_pd()
        qp = pd.create_qp(first, second)
        qp.modify(QpState.INIT)
        qp.post_recv(2)
        second.arm()
        qp.modify(QpState.ERROR)
        assert channel.get_event(timeout=5) is second
        assert second.cq_context == "second"
        assert [wc.status for wc in second.poll()] == [WcStatus.WR_FLUSH_ERR] * 2
        assert channel.get_event(timeout=0.05) is None, "one event for one call of arm"
        second.arm()
        first.arm()
        with pytest.raises(StateError, match="in use by completion queue"):
            channel.close()
        qp.close()
        first.close()
        second.close()
        channel.close()
        with pytest.raises(ClosedError):
            channel.get_event(timeout=0)
        with pytest.raises(ClosedError):
            context.create_cq(channel=channel)


def test_a_channels_descriptor_can_be_waited_for():
    with device().open() as context:
        channel = context.create_comp_channel()
        cq = context.create_cq(channel=channel)
        assert select.select([channel], [], [], 0) == ([], [], [])
        qp = context.alloc_pd().create_qp(cq)
        qp.modify(QpState.INIT)
        qp.post_recv(1)
        cq.arm()
        qp.modify(QpState.ERROR)
        assert select.select([channel], [], [], 5)[0] == [channel]


@pytest.mark.parametrize(("flags", "told"), [(SendFlags.SIGNALED, False), (SOLICITED, True)])
def test_a_queue_armed_for_solicited_events_tells_of_those_only(flags, told):
    with connected() as (a, b):
        b.recv_cq.arm(solicited_only=True)
        immediate(a, b, flags)
        assert eventually(lambda: len(b.recv_cq) == 1)
        assert b.recv_cq.acknowledge() is told


def test_an_error_is_always_told():
    with connected() as (a, _):
        a.qp.post_recv(1)
        a.recv_cq.arm(solicited_only=True)
        a.qp.modify(QpState.ERROR)
        assert a.recv_cq.acknowledge()


def test_there_is_one_completion_vector():
    with device().open() as context:
        attr = context.query_device()
        assert attr.num_comp_vectors == 1
        context.create_cq(comp_vector=0)
        for vector in (-1, 1):
            with pytest.raises(ArgumentError, match="comp_vector"):
                context.create_cq(comp_vector=vector)
        with device().open() as other, pytest.raises(ArgumentError, match="another context"):
            context.create_cq(channel=other.create_comp_channel())


def test_device_attributes_are_what_the_device_takes():
    with device(planes=3, max_qps=100).open() as context:
        attr = context.query_device()
        assert (attr.protocol_version, attr.capabilities) == (1, Capabilities.ALL)
        assert (attr.max_wimm, attr.max_wimm_dest) == (16384, 16384)
        assert (attr.max_mpr, attr.mpr_resolution) == (255, 1)
        assert (attr.num_ports, attr.max_qp, attr.max_qp_hint) == (3, 100, 16384)
        pd, cq = context.alloc_pd(), context.create_cq()
        largest = QpCap(
            max_send_wr=attr.max_send_wr,
            max_recv_wr=attr.max_recv_wr,
            max_send_sge=attr.max_send_sge,
            max_inline_data=attr.max_inline_data,
        )
        pd.create_qp(cq, cap=largest).close()
        for name in ("max_send_wr", "max_recv_wr", "max_send_sge", "max_inline_data"):
            with pytest.raises(ArgumentError, match=name):
                pd.create_qp(cq, cap=QpCap(**{name: getattr(attr, name) + 1}))
        with pytest.raises(ArgumentError):
            context.create_cq(attr.max_cqe + 1)


def test_a_shared_hint_counts_with_what_it_says_when_the_queue_pair_is_connected():
    with device(planes=1, receive_buffer=1 << 20).open() as context:
        hint = context.create_qp_hint(QpHint(), vendor_cfg=b"ignored")
        ends = [make_end(context, hint=hint) for _ in range(2)]
        wide = QpHint().mpr(context.receive_buffer, 4096)
        hint.modify(num_remote_recv_peers=1000)
        assert hint.query() == QpHint(num_remote_recv_peers=1000)
        assert ends[0].qp.hint == hint.query()
        bring_up(*ends)
        assert ends[0].qp.query().attr.mpr == 1
        hint.modify(num_remote_recv_peers=1, vendor_cfg=bytes(128))
        later = [make_end(context, hint=hint) for _ in range(2)]
        bring_up(*later)
        assert later[0].qp.query().attr.mpr == wide
        with pytest.raises(StateError, match="in use by queue pair"):
            hint.close()
        for end in (*ends, *later):
            end.qp.close()
        hint.close()
        with pytest.raises(ClosedError):
            hint.query()


def test_a_shared_hint_refuses_what_is_wrong_and_stays_as_it_was():
    with device().open() as context, device().open() as other:
        hint = context.create_qp_hint(QpHint(num_send_peers=3))
        for wrong, error in [
            ({"num_send_peers": 0}, ArgumentError),
            ({"peers": 1}, ArgumentError),
            ({"vendor_cfg": bytes(129)}, ArgumentError),
            ({"vendor_cfg": b"x", "num_send_peers": 5}, UnsupportedError),
        ]:
            with pytest.raises(error):
                hint.modify(**wrong)
        assert hint.query().num_send_peers == 3
        with pytest.raises(ArgumentError, match="another context"):
            other.alloc_pd().create_qp(other.create_cq(), hint=hint)
        with pytest.raises(ArgumentError, match="128 bytes"):
            context.create_qp_hint(vendor_cfg=bytes(129))


def test_vendor_bytes_of_a_queue_pair_must_say_nothing():
    with device().open() as context:
        qp = make_end(context).qp
        with pytest.raises(UnsupportedError, match="vendor_cfg"):
            qp.modify(QpState.INIT, vendor_cfg=b"\x01")
        assert qp.state is QpState.RESET
        qp.modify(QpState.INIT, vendor_cfg=bytes(128))
        assert qp.state is QpState.INIT
