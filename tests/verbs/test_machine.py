"""Any order of calls, valid or not: no crash, no hang, only openmrc.Error, no byte at a wrong place."""

import contextlib

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from openmrc.controller import Controller
from openmrc.errors import Error
from openmrc.testing import Impairment, impair
from openmrc.verbs import AccessFlags, QpCap, QpState, SendFlags, SendWR, Sge, WcStatus
from tests.helpers.ends import device

GUARD = 256
SIZE = 40_000


class Verbs(RuleBasedStateMachine):
    """Two devices and their objects, in bundles that also keep closed objects."""

    pds = Bundle("pds")
    cqs = Bundle("cqs")
    qps = Bundle("qps")
    regions = Bundle("regions")

    def __init__(self):
        super().__init__()
        self.contexts = [device(2, max_qps=8).open() for _ in range(2)]
        self.buffers = []

    def teardown(self):
        for context in self.contexts:
            context.close()
        for whole in self.buffers:
            whole.append(0)  # Not pinned any more.

    @rule(target=pds, side=st.integers(0, 1))
    def alloc_pd(self, side):
        with _refusable():
            return self.contexts[side].alloc_pd()
        return multiple()

    @rule(target=cqs, side=st.integers(0, 1), cqe=st.sampled_from([1, 3, 100]))
    def create_cq(self, side, cqe):
        with _refusable():
            return self.contexts[side].create_cq(cqe)
        return multiple()

    @rule(target=qps, pd=pds, send=cqs, recv=cqs, depth=st.sampled_from([1, 4, 64]))
    def create_qp(self, pd, send, recv, depth):
        with _refusable():
            return pd.create_qp(send, recv, cap=QpCap(max_send_wr=depth, max_recv_wr=depth))
        return multiple()

    @rule(target=regions, pd=pds, access=st.sampled_from([0, 1, 3]))
    def register(self, pd, access):
        whole = bytearray(GUARD + SIZE + GUARD)
        with _refusable():
            region = pd.register(memoryview(whole)[GUARD : GUARD + SIZE], AccessFlags(access))
            self.buffers.append(whole)
            return region
        return multiple()

    @rule(a=qps, b=qps)
    def connect(self, a, b):
        for one, other in ((a, b), (b, a)):
            with _refusable():
                one.modify(QpState.RESET)
                one.modify(QpState.INIT)
                one.modify(QpState.RTR, dest_qp_num=other.qp_num, rq_psn=1, remote=other.context.addresses)
        for one in (a, b):
            with _refusable():
                one.modify(QpState.RTS, sq_psn=1, timeout=8, linear_cnt=3, exp_cnt=2)

    @rule(qp=qps, state=st.sampled_from(QpState))
    def modify(self, qp, state):
        with _refusable():
            qp.modify(state)

    @rule(
        qp=qps,
        source=regions,
        into=regions,
        offset=st.integers(-10, SIZE + 10),
        length=st.integers(0, SIZE + 10),
        imm=st.none() | st.just(7),
    )
    def write_anywhere(self, qp, source, into, offset, length, imm):
        """Also beyond the region, as a hostile peer would write."""
        with _refusable():
            qp.post_send(
                SendWR(
                    sg_list=[Sge(source.addr, min(length, source.length), source.lkey)],
                    remote_addr=into.addr + offset,
                    rkey=into.rkey,
                    imm_data=imm,
                    wr_id=length,
                    send_flags=SendFlags.SIGNALED,
                )
            )

    @rule(qp=qps, source=regions, into=regions, count=st.integers(0, 70), length=st.integers(0, 600))
    def post_writes(self, qp, source, into, count, length):
        with _refusable():
            qp.post_writes(source, into.remote(), length=length, count=count, stride=length)

    @rule(qp=qps, count=st.integers(0, 70))
    def post_recv(self, qp, count):
        with _refusable():
            qp.post_recv(count)

    @rule(cq=cqs, count=st.integers(0, 50), timeout=st.sampled_from([0, 0.005]))
    def poll(self, cq, count, timeout):
        with _refusable():
            cq.wait(timeout)
            for done in cq.poll(count):
                assert done.status in WcStatus
                assert done.imm_data in (None, 7)

    @rule(side=st.integers(0, 1), port=st.integers(0, 1), up=st.booleans())
    def port(self, side, port, up):
        with _refusable():
            Controller(self.contexts[side]).set_port_admin(port, up=up)

    @rule(side=st.integers(0, 1), loss=st.sampled_from([0.0, 0.1, 1.0]), seed=st.integers(0, 99))
    def network(self, side, loss, seed):
        with _refusable():
            impair(self.contexts[side], Impairment.drop(probability=loss), Impairment.reorder(), seed=seed)

    @rule(which=pds | cqs | qps | regions)
    def close(self, which):
        with _refusable():
            which.close()

    @rule(side=st.integers(0, 1))
    def events(self, side):
        with _refusable():
            while self.contexts[side].async_events.poll() is not None:
                pass

    @invariant()
    def memory_never_offered_is_untouched(self):
        for whole in self.buffers:
            assert not any(whole[:GUARD])
            assert not any(whole[GUARD + SIZE :])


@contextlib.contextmanager
def _refusable():
    with contextlib.suppress(Error):
        yield


SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def test_no_order_of_calls_does_harm():
    run_state_machine_as_test(Verbs, settings=settings(max_examples=25, stateful_step_count=40, **SETTINGS))


@pytest.mark.long
def test_no_order_of_calls_does_harm_in_a_long_run():
    run_state_machine_as_test(
        Verbs, settings=settings(max_examples=1500, stateful_step_count=120, **SETTINGS)
    )
