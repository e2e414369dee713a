"""Peers that stop, vanish or come back: what each end learns, and when."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from openmrc.connect import Options, listen
from openmrc.verbs import AsyncEventType, QpState
from tests.helpers.ends import device, eventually, make_end
from tests.helpers.repository import ROOT

STOPS = pytest.mark.parametrize("seconds", [3, pytest.param(15, marks=pytest.mark.long)])
"""For how long an end is stopped."""

# The other end as a process: it writes as fast as it can, or only receives, until it is killed.
PEER = """
    import sys, time
    sys.path.insert(0, {root!r})
    from openmrc.connect import Options, connect
    from tests.helpers.ends import device, make_end
    with device().open() as context:
        end = make_end(context)
        buffer = end.region(bytearray(1 << 20))
        options = Options(keepalive_ms={keepalive_ms})
        with connect("127.0.0.1", {port}, end.qp, buffers=[buffer], options=options) as peer:
            print("connected", flush=True)
            while {writes}:
                end.qp.write(buffer.sge(0, 65536), peer.buffers[0])
                (done,) = end.send_cq.take(1)
                assert done.ok, done
                print("written", flush=True)
            time.sleep(600)
"""


@contextlib.contextmanager
def connected_process(*, writes, keepalive_ms=0):
    """An end here that is connected to one in a process of its own; yields both."""
    with device().open() as context, listen("127.0.0.1", 0) as listener:
        end = make_end(context)
        code = textwrap.dedent(PEER).format(
            root=str(ROOT),
            port=listener.address[1],
            writes=writes,
            keepalive_ms=keepalive_ms,
        )
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        try:
            target = end.region(bytearray(1 << 20))
            options = Options(keepalive_ms=keepalive_ms)
            with listener.accept(end.qp, buffers=[target], options=options, timeout=30) as peer:
                assert process.stdout.readline() == "connected\n"
                yield end, peer, process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.parametrize("writes", [True, False], ids=["the receiver learns", "the sender learns"])
def test_a_peer_that_is_killed_without_a_word_is_an_event_within_the_configured_time(writes):
    with connected_process(writes=writes, keepalive_ms=500) as (end, peer, process):
        if not writes:
            end.qp.write(end.region(bytearray(1 << 20)), peer.buffers[0])
            end.send_cq.take(1, 20)
        assert end.qp.silent_for is None
        process.kill()
        if not writes:
            # Something is under way, whose retries take longer.
            end.qp.write(b"x", peer.buffers[0])
        event = end.context.async_events.get(30)
        assert (event.type, event.qp_num) == (AsyncEventType.PEER_SILENT, end.qp.qp_num)
        assert end.qp.silent_for >= 0
        assert end.qp.state is QpState.RTS


@contextlib.contextmanager
def stopped(process):
    """Stops a process for a while."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@STOPS
def test_a_receiver_that_is_stopped_for_long_is_waited_for(seconds):
    with connected_process(writes=False) as (end, peer, process):
        source = end.region(bytearray(1 << 20))
        with stopped(process):
            end.qp.write(source, peer.buffers[0])
            time.sleep(seconds)
        (done,) = end.send_cq.take(1, 60)
        assert done.ok
        assert end.qp.state is QpState.RTS


@STOPS
def test_a_sender_that_is_stopped_for_long_goes_on(seconds):
    with connected_process(writes=True) as (end, _, process):
        assert process.stdout.readline() == "written\n"
        with stopped(process):
            time.sleep(seconds)
        # More than the pipe holds, so that these were written afterwards.
        lines = 65536 // len("written\n")
        assert all(process.stdout.readline() == "written\n" for _ in range(lines + 100))
        assert end.qp.state is QpState.RTS


def test_silence_ends_when_the_peer_is_heard():
    with connected_process(writes=True, keepalive_ms=100) as (end, _, process):
        with stopped(process):
            assert eventually(lambda: end.qp.silent_for is not None)
            assert end.context.async_events.get(20).type is AsyncEventType.PEER_SILENT
        assert end.context.async_events.get(20).type is AsyncEventType.PEER_HEARD
        assert end.qp.silent_for is None
