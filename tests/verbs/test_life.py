"""Lifetime of objects: nothing leaks, nothing hangs, and the GIL is not held during traffic."""

import contextlib
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

from openmrc.verbs import QpCap, QpState, SendFlags
from tests.helpers.ends import bring_up, connected, device, eventually, make_end
from tests.helpers.repository import ROOT


def engine_threads():
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.endswith("-engine")]


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_registered_buffer_is_pinned_and_released_with_its_region():
    with device().open() as context:
        pd = context.alloc_pd()
        buffer = bytearray(100)
        before = sys.getrefcount(buffer)
        region = pd.register(buffer)
        with pytest.raises(BufferError):
            buffer.append(1)
        region.close()
        buffer.append(1)
        assert sys.getrefcount(buffer) == before


class Watched(bytearray):
    """A bytearray that can have weak references."""


@pytest.mark.parametrize("how", ["region", "domain", "context", "with"])
def test_a_buffer_that_nobody_else_keeps_goes_with_its_region(how):
    context = device().open()
    pd = context.alloc_pd()
    buffer = Watched(10)
    gone = weakref.ref(buffer)
    region = pd.register(buffer)
    del buffer
    gc.collect()
    assert gone() is not None
    if how == "with":
        with region:
            pass
    else:
        {"region": region, "domain": pd, "context": context}[how].close()
    gc.collect()
    assert gone() is None
    context.close()


def test_a_region_without_a_reference_stays_registered_as_in_ibverbs():
    with connected() as (a, b):
        target = bytearray(4)
        remote = b.region(target).remote()
        gc.collect()
        a.qp.write(b"kept", remote)
        assert a.send_cq.take(1, 20)[0].ok
        assert target == b"kept"


def test_a_thousand_registrations_leave_nothing_behind():
    with device().open() as context:
        pd = context.alloc_pd()
        array = np.zeros(1000)
        before = sys.getrefcount(array)
        for _ in range(1000):
            pd.register(array).close()
        assert sys.getrefcount(array) == before


def test_closing_devices_leaves_no_thread_and_no_descriptor():
    with connected() as (a, b):
        a.qp.write(b"x", b.region(bytearray(1)).remote())
        a.send_cq.take(1, 20)
    del a, b
    gc.collect()
    threads, fds = len(engine_threads()), descriptors()
    gc.disable()
    for _ in range(10):
        with connected() as (a, b):
            assert eventually(lambda: len(engine_threads()) == threads + 2)
            a.qp.write(b"x", b.region(bytearray(1)).remote())
            a.send_cq.take(1, 20)
    del a, b
    # There is no reference cycle: it is freed without the garbage collector.
    leaked = descriptors() - fds
    gc.enable()
    assert len(engine_threads()) == threads
    assert leaked == 0


def test_a_context_that_is_forgotten_is_closed_all_the_same():
    threads = len(engine_threads())
    context = device().open()
    end = make_end(context)
    buffer = Watched(10)
    gone = weakref.ref(buffer)
    end.region(buffer)
    assert eventually(lambda: len(engine_threads()) == threads + 1)
    del buffer, end, context
    gc.collect()
    assert eventually(lambda: len(engine_threads()) == threads)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("which", ["sender", "receiver", "both", "queue pair", "domain", "source", "target"])
def test_closing_anything_while_data_flow_is_clean(which):
    with connected(planes=4, cap=QpCap(max_send_wr=64)) as (a, b):
        source, target = bytearray(1 << 20), bytearray(1 << 20)
        local, remote = a.region(source), b.region(target)
        place = remote.remote()
        for _ in range(64):
            a.qp.write(local, place)
        assert a.send_cq.wait(60)
        {
            "sender": a.context.close,
            "receiver": b.context.close,
            "both": lambda: (a.context.close(), b.context.close()),
            "queue pair": a.qp.close,
            "domain": a.pd.close,
            "source": local.close,
            "target": remote.close,
        }[which]()
        if which in ("receiver", "both", "target"):
            still = bytes(target)
            assert remote.closed
            target.append(0)
            assert target[:-1] == still
        if which in ("sender", "both", "domain", "source"):
            assert local.closed
            source.append(0)


def test_a_queue_pair_can_be_reset_and_connected_again():
    with connected() as (a, b):
        target = bytearray(3)
        remote = b.region(target).remote()
        for i in range(5):
            message = bytes([i] * 3)
            a.qp.write(message, remote)
            assert a.send_cq.take(1, 20)[0].ok
            assert target == message
            for end in (a, b):
                end.qp.modify(QpState.RESET)
            bring_up(a, b, psns=(i, 1000 + i))


def test_hundreds_of_queue_pairs_share_two_devices():
    with device(planes=4).open() as one, device(planes=4).open() as two:
        count = 200
        a, b = make_end(one), make_end(two)
        a.qp.close()
        b.qp.close()
        target = np.zeros((count, 1000), np.uint8)
        remote = b.region(target).remote()
        cap = QpCap(max_send_wr=4, max_recv_wr=1)
        ends = []
        for i in range(count):
            mine, theirs = make_end(one, cqe=4, cap=cap), make_end(two, cqe=4, cap=cap)
            theirs.qp.close()
            theirs.qp = b.pd.create_qp(b.send_cq, cap=cap)
            bring_up(mine, theirs, psns=(i, i))
            ends.append(mine)
        for i, end in enumerate(ends):
            end.qp.write(bytes([i] * 200), remote.at(i * 1000), send_flags=SendFlags.SIGNALED)
        for end in ends:
            assert end.send_cq.take(1, 60)[0].ok
        assert (target[:, :200] == np.arange(count, dtype=np.uint8)[:, None]).all()
        assert not target[:, 200:].any()
        numbers = {end.qp.qp_num for end in ends}
        assert len(numbers) == count
        assert numbers != set(range(min(numbers), max(numbers) + 1))


def test_python_goes_on_while_traffic_runs_and_while_it_is_waited_for():
    with connected(planes=4, cap=QpCap(max_send_wr=128)) as (a, b):
        local, remote = a.region(bytearray(4 << 20)), b.region(bytearray(4 << 20)).remote()
        progress = 0
        waiting = threading.Event()
        stop = threading.Event()

        def count():
            nonlocal progress
            waiting.wait()
            while not stop.is_set():
                progress += 1

        counter = threading.Thread(target=count)
        counter.start()
        for _ in range(64):
            a.qp.write(local, remote)
        waiting.set()
        done = a.send_cq.take(64, 60)
        stop.set()
        counter.join()
        assert all(wc.ok for wc in done)
        # If the wait held the GIL, the other thread could not have counted before it was stopped.
        assert progress > 1000


def test_polling_lets_other_threads_run():
    with connected() as (a, b), a.context.polling(), b.context.polling():
        local, remote = a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20)).remote()
        for _ in range(16):
            a.qp.write(local, remote)
        progress, stop = 0, threading.Event()

        def count():
            nonlocal progress
            while not stop.is_set():
                progress += 1

        counter = threading.Thread(target=count)
        counter.start()
        done = []
        while len(done) < 16:
            b.context.progress()
            done += a.send_cq.poll()
        stop.set()
        counter.join()
        assert progress > 0


def test_a_program_that_ends_without_closing_ends_cleanly():
    code = """
        from openmrc.verbs import Device
        import sys
        sys.path.insert(0, {root!r})
        from tests.helpers.ends import connected
        manager = connected()
        a, b = manager.__enter__()
        local, remote = a.region(bytearray(1 << 20)), b.region(bytearray(1 << 20))
        for _ in range(64):
            a.qp.write(local, remote.remote())
        print("posted")
    """
    code = textwrap.dedent(code).format(root=str(ROOT))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "posted\n", "")


@pytest.mark.parametrize("ending", ["context.close()", "interpreters.destroy(inside)"])
def test_a_device_of_a_subinterpreter_that_is_closed_or_destroyed_holds_up_no_end(ending):
    pytest.importorskip("_xxsubinterpreters")
    inside, outside = (ending, "") if ending.startswith("context") else ("", ending)
    opens = f"from openmrc.verbs import Device; context = Device.loopback(2).open(); {inside}"
    code = f"""
        import _xxsubinterpreters as interpreters
        inside = interpreters.create()
        interpreters.run_string(inside, {opens!r})
        {outside}
        print("over")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "over\n", "")


def test_a_fork_does_not_disturb_the_parent():
    with connected() as (a, b):
        target = bytearray(6)
        remote = b.region(target).remote()
        code = f"import os; os.close({a.send_cq.fileno()})"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        # The descriptor is not inherited: in the child this number is free.
        assert "Bad file descriptor" in child.stderr
        a.qp.write(b"parent", remote)
        assert a.send_cq.take(1, 20)[0].ok
        assert target == b"parent"
