"""Waiting from threads, from asyncio and from select; overruns and other asynchronous events."""

import asyncio
import os
import select
import signal
import threading
import time

import pytest

from openmrc.controller import Controller
from openmrc.errors import ClosedError, DeadlineError, OverrunError
from openmrc.testing import Impairment, impaired
from openmrc.verbs import AsyncEventType, QpState, RecvWR, RemoteBuffer, SendWR, WcStatus
from tests.helpers.ends import SMALL, connected, device, eventually

NOWHERE = RemoteBuffer(0, 0, 0)


def test_wait_and_take_give_up_after_their_timeout():
    with connected() as (a, _):
        assert a.send_cq.wait(0) is False
        assert a.send_cq.wait(0.02) is False
        a.qp.write(b"", NOWHERE, wr_id=9)
        with pytest.raises(DeadlineError, match="1 of 2 completions") as caught:
            a.send_cq.take(2, 0.3)
        assert [wc.wr_id for wc in caught.value.completions] == [9]


def test_every_one_of_many_waiting_threads_gets_its_completion():
    threads, each = 8, 40
    with connected() as (a, b):
        b.qp.post_recv(threads * each)
        taken = [[] for _ in range(threads)]

        def consume(mine):
            while len(mine) < each:
                mine += b.recv_cq.take(1, 60)

        workers = [threading.Thread(target=consume, args=(mine,)) for mine in taken]
        for worker in workers:
            worker.start()
        for i in range(threads * each):
            a.qp.write(b"", NOWHERE, imm_data=i)
            a.send_cq.take(1, 20)
        for worker in workers:
            worker.join(60)
        assert not any(worker.is_alive() for worker in workers)
        assert sorted(wc.imm_data for mine in taken for wc in mine) == list(range(threads * each))


def test_asyncio_tasks_and_threads_wait_side_by_side():
    tasks, threads, each = 5, 3, 30
    with connected() as (a, b):
        b.qp.post_recv((tasks + threads) * each)
        seen = []

        def in_thread():
            for _ in range(each):
                seen.extend(b.recv_cq.take(1, 60))

        async def in_task():
            for _ in range(each):
                while not (done := b.recv_cq.poll(1)):
                    await b.recv_cq.wait_async(60)
                seen.extend(done)

        async def produce():
            for i in range((tasks + threads) * each):
                a.qp.write(b"", NOWHERE, imm_data=i)
                while not a.send_cq.poll(1):
                    await a.send_cq.wait_async(60)

        async def everything():
            await asyncio.gather(produce(), *(in_task() for _ in range(tasks)))

        workers = [threading.Thread(target=in_thread) for _ in range(threads)]
        for worker in workers:
            worker.start()
        asyncio.run(everything())
        for worker in workers:
            worker.join(60)
        assert sorted(wc.imm_data for wc in seen) == list(range((tasks + threads) * each))


def test_async_for_yields_every_completion_in_order_and_leaves_the_rest():
    with connected() as (a, b):
        b.qp.post_recv(RecvWR(i) for i in range(100))

        async def consume():
            got = []
            async for done in b.recv_cq:
                got.append(done.imm_data)
                if len(got) == 60:
                    break
            return got

        async def both():
            consumer = asyncio.create_task(consume())
            for i in range(100):
                a.qp.write(b"", NOWHERE, imm_data=i)
                await asyncio.sleep(0)
                while not a.send_cq.poll():
                    await a.send_cq.wait_async()
            return await consumer

        assert asyncio.run(both()) == list(range(60))
        assert [wc.imm_data for wc in b.recv_cq.take(40, 20)] == list(range(60, 100))


def test_waiting_in_asyncio_neither_spins_nor_blocks_the_loop():
    with connected() as (a, _):

        async def idle():
            turns = 0
            waiter = asyncio.create_task(a.send_cq.wait_async())
            await asyncio.sleep(0)
            loop = asyncio.get_running_loop()
            select_ = loop._selector.select

            def counting(*arguments):
                nonlocal turns
                turns += 1
                return select_(*arguments)

            loop._selector.select = counting
            await asyncio.sleep(0.2)
            assert not waiter.done()
            a.qp.write(b"", NOWHERE)
            await asyncio.wait_for(waiter, 20)
            return turns

        # The sleep, the write, the wake-up: a few turns; a busy loop would take thousands.
        assert asyncio.run(idle()) < 20


def test_a_cancelled_wait_leaves_nothing_behind():
    with connected() as (a, _):

        async def cancel():
            with pytest.raises(TimeoutError):
                await a.send_cq.wait_async(0.02)
            a.qp.write(b"", NOWHERE)
            await a.send_cq.wait_async(20)
            return len(a.send_cq.poll())

        assert asyncio.run(cancel()) == 1
        assert asyncio.run(_nothing_to_read(a.send_cq)) is True


async def _nothing_to_read(cq):
    loop = asyncio.get_running_loop()
    return loop.remove_reader(cq.fileno()) is False


def test_select_with_arm_and_acknowledge_misses_nothing():
    with connected() as (a, _):
        taken = 0
        a.qp.post_send([SendWR() for _ in range(50)])
        while taken < 50:
            a.send_cq.arm()
            readable, _, _ = select.select([a.send_cq], [], [], 20)
            assert readable
            assert a.send_cq.acknowledge() is True
            while done := a.send_cq.poll():
                taken += len(done)
        assert select.select([a.send_cq], [], [], 0) == ([], [], [])


@pytest.mark.parametrize("how", ["thread", "task", "async for"])
def test_closing_wakes_whoever_waits(how):
    with connected() as (a, _):
        cq = a.context.create_cq()
        outcome = []

        async def iterate():
            return [wc async for wc in cq]

        def wait():
            try:
                if how == "thread":
                    cq.wait()
                elif how == "task":
                    asyncio.run(cq.wait_async())
                else:
                    outcome.append(asyncio.run(iterate()))
            except ClosedError as error:
                outcome.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        cq.close()
        waiting.join(20)
        assert not waiting.is_alive()
        assert outcome == [[]] if how == "async for" else isinstance(outcome[0], ClosedError)


def test_closing_the_context_wakes_whoever_waits_for_events():
    context = device().open()
    outcome = []

    def wait():
        try:
            context.async_events.get()
        except ClosedError as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    context.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert outcome


def test_a_signal_ends_a_wait_that_nothing_else_would():
    class SignalError(Exception):
        pass

    def handler(*_):
        raise SignalError

    with connected() as (a, _):
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            killer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
            killer.start()
            with pytest.raises(SignalError):
                a.send_cq.wait()
            killer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        a.qp.write(b"", NOWHERE)
        assert a.send_cq.take(1, 20)[0].ok


def test_an_overrun_is_an_error_everywhere_and_what_was_held_is_not_lost():
    with connected(cqe=4) as (a, _):
        a.qp.post_send(SendWR(wr_id=i) for i in range(40))
        assert eventually(lambda: a.qp.state is QpState.ERROR)
        assert [wc.wr_id for wc in a.send_cq.poll(100)] == [0, 1, 2, 3]
        assert a.send_cq.wait(20) is True
        with pytest.raises(OverrunError, match=f"completion queue {a.send_cq.handle} overran"):
            a.send_cq.poll()
        with pytest.raises(OverrunError):
            asyncio.run(_first(a.send_cq))
        events = [a.context.async_events.get(20) for _ in range(2)]
        assert (AsyncEventType.CQ_ERR, a.send_cq.handle) in {(e.type, e.cq) for e in events}
        assert (AsyncEventType.QP_FATAL, a.qp.qp_num) in {(e.type, e.qp_num) for e in events}


async def _first(cq):
    return await anext(aiter(cq))


def test_a_port_that_goes_down_is_an_event_here_and_at_the_peer():
    with connected(planes=2) as (a, b):
        control = Controller(a.context)
        control.set_port_admin(1, up=False)
        here = a.context.async_events.get(20)
        assert (here.type, here.port) == (AsyncEventType.PORT_ERR, 1)
        there = b.context.async_events.get(20)
        assert (there.type, there.qp_num, there.ports_up) == (AsyncEventType.PEER_PORTS, b.qp.qp_num, (0,))
        assert (a.qp.ports_up(), b.qp.ports_up(), a.context.ports_up()) == ([0], [0], [0])
        a.qp.write(b"still", b.region(bytearray(5)).remote())
        assert a.send_cq.take(1, 20)[0].ok
        control.set_port_admin(1, up=True)
        assert a.context.async_events.get(20).type is AsyncEventType.PORT_ACTIVE
        assert eventually(lambda: b.qp.ports_up() == [0, 1])


def test_every_reader_has_all_events_since_it_subscribed():
    with connected(planes=2) as (a, _):
        control = Controller(a.context)
        control.set_port_admin(1, up=False)
        assert a.context.async_events.get(20).type is AsyncEventType.PORT_ERR
        early, other = a.context.async_events.subscribe(), a.context.async_events.subscribe()
        control.set_port_admin(1, up=True)
        for reader in (early, a.context.async_events, other):
            assert reader.get(20).type is AsyncEventType.PORT_ACTIVE
            assert (reader.poll(), reader.dropped) == (None, 0)
    for reader in (early, other):
        with pytest.raises(ClosedError):
            reader.poll()
    with pytest.raises(ClosedError):
        a.context.async_events.subscribe()


def test_events_can_be_iterated_in_asyncio():
    with connected(planes=3, cap=SMALL) as (a, _):
        control = Controller(a.context)

        async def three():
            ports = []
            async for event in a.context.async_events:
                ports.append(event.port)
                if len(ports) == 3:
                    break
            return ports

        async def both():
            waiting = asyncio.create_task(three())
            for port in (2, 0, 1):
                await asyncio.sleep(0)
                control.set_port_admin(port, up=False)
            return await asyncio.wait_for(waiting, 20)

        assert asyncio.run(both()) == [2, 0, 1]


def test_a_peer_that_is_gone_ends_the_queue_pair_when_retries_end():
    with connected(rts={"timeout": 6, "linear_cnt": 2, "exp_cnt": 1}) as (a, b):
        remote = b.region(bytearray(4)).remote()
        b.context.close()
        a.qp.write(b"gone", remote, wr_id=4)
        (done,) = a.send_cq.take(1, 60)
        assert (done.wr_id, done.status) == (4, WcStatus.RETRY_EXC_ERR)
        event = a.context.async_events.get(20)
        assert event.type is AsyncEventType.QP_FATAL
        assert "does not answer" in event.reason


def test_a_peer_that_is_silent_while_nothing_is_under_way_is_an_event_and_so_is_its_return():
    with connected(rts={"keepalive_ms": 20, "timeout": 15}) as (a, b):
        assert a.qp.query().attr.keepalive_ms == 20
        with impaired(b.context, Impairment.drop()):
            event = a.context.async_events.get(20)
            assert (event.type, event.qp_num) == (AsyncEventType.PEER_SILENT, a.qp.qp_num)
        event = a.context.async_events.get(20)
        assert (event.type, event.qp_num) == (AsyncEventType.PEER_HEARD, a.qp.qp_num)
        assert a.qp.state is QpState.RTS
        # The probes of a still arrived, so b has noticed nothing.
        assert b.context.async_events.poll() is None
