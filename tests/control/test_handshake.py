"""The handshake that all commands share: strangers, deadlines, other protocols, many descriptors."""

import contextlib
import os
import resource
import socket
import struct
import time

import pytest

from openmrc import handshake
from openmrc.control import Channel, Deadline, Greeting, GreetingError, Limits, Listener, MalformedError, dial
from openmrc.control.greeting import greet
from openmrc.control.messages import messages
from openmrc.control.tcp import wait_readable
from openmrc.errors import ClosedError, ConnectError, DeadlineError
from openmrc.handshake import Protocol, Ready
from openmrc.perftest import protocol as perftest
from openmrc.perftest.client import measuring
from openmrc.perftest.server import Server
from openmrc.perftest.settings import Settings
from openmrc.planes import Planes
from openmrc.transfer import protocol as transfer
from tests.helpers.ends import device
from tests.helpers.peers import in_background

STRANGERS = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303"),
    "nothing": b"",
    "no greeting": struct.pack(">I", 16) + b'{"type":"ready"}',
}

A = Protocol("test-a", 1)


@pytest.fixture
def listener():
    with Listener(A, "127.0.0.1", 0) as listener:
        yield listener


def greeted(listener):
    """A connection of a caller that has greeted and has sent a first message."""
    channel = dial(A, *listener.address, "")
    channel.send(Ready())
    return channel


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_server_of_write_bw_drops_strangers_and_serves_the_client_after_them(sent):
    settings = Settings(test="write-bw", sizes=(4096,), iterations=10, planes=Planes(count=2))
    with Server(settings, "127.0.0.1", 0) as server:
        results = []
        thread, outcome = in_background(server.serve, results.append)
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stranger:
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b"", "a stranger is told nothing"
        with measuring(settings, "127.0.0.1", server.port) as found:
            [result] = found
        thread.join(20)
    assert outcome == [None]
    assert [each["iterations"] for each in results] == [result.iterations] == [10]


@pytest.mark.parametrize("drip", [False, True])
def test_a_stranger_is_ended_at_the_deadline_silent_or_with_bytes_that_drip(drip):
    reasons = []
    limits = Limits(greeting=0.3)
    with Listener(
        A, "127.0.0.1", 0, limits=limits, on_refused=lambda *said: reasons.append(said)
    ) as listener:
        thread, outcome = in_background(listener.accept, 60)
        with socket.create_connection(listener.address, timeout=30) as stranger:
            if drip:
                stranger.sendall(struct.pack(">I", 1000))
            while not reasons:
                with contextlib.suppress(OSError):
                    stranger.sendall(b"x" if drip else b"")
                time.sleep(0.01)
        listener.close()
        thread.join(20)
    assert isinstance(outcome[0], ClosedError)
    assert "did not answer within 0.3 s" in reasons[0][1]


def test_programs_of_two_protocols_tell_each_other(listener):
    thread, outcome = in_background(listener.accept, 3)
    with pytest.raises(
        GreetingError, match="refuses: the other end speaks 'openmrc-transfer', this one test-a"
    ):
        dial(transfer.PROTOCOL, *listener.address, "")
    thread.join(20)
    assert "speaks 'openmrc-transfer', this one test-a" in str(outcome[0])


def test_two_versions_tell_each_other(listener):
    thread, outcome = in_background(listener.accept, 3)
    with pytest.raises(GreetingError, match="version 2 of test-a meets version 1"):
        dial(Protocol("test-a", 2), *listener.address, "")
    thread.join(20)
    assert "version 2 of test-a meets version 1" in str(outcome[0])


def test_a_listener_that_is_closed_wakes_who_waits(listener):
    thread, outcome = in_background(listener.accept)
    time.sleep(0.1)
    listener.close()
    thread.join(20)
    assert isinstance(outcome[0], ClosedError)
    with pytest.raises(ClosedError):
        listener.accept()


def test_a_listener_that_runs_out_of_descriptors_accepts_once_there_are_some(listener):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listener.address) as caller:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            with pytest.raises(DeadlineError):
                listener.accept(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        thread, outcome = in_background(listener.accept, 20)
        with Channel(caller, "listener", A.messages) as channel:
            greet(channel, A, None, Deadline(20))
            channel.send(Ready())
            thread.join(20)
        outcome[0].close()


def test_a_caller_for_whom_there_is_no_descriptor_is_told_so_after_a_while(listener):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection(listener.address, timeout=20) as caller, caller.makefile("rb") as answer:
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            thread, outcome = in_background(listener.accept, 2.5)
            said = answer.read(300)
            thread.join(20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(outcome[0], DeadlineError)
    assert b"no file descriptors are left for another connection" in said
    thread, outcome = in_background(listener.accept, 20)
    with greeted(listener):
        thread.join(20)
    outcome[0].close()


def test_descriptors_above_1023_can_be_waited_for():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2100:
        pytest.skip(f"at most {hard} descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2100), hard))
    one, two = socket.socketpair()
    high = socket.socket(fileno=os.dup2(one.fileno(), 2050))
    try:
        assert not wait_readable(high, timeout=0)
        two.send(b"x")
        assert wait_readable(high, timeout=20)
    finally:
        for each in (one, two, high):
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_nobody_asked_for_is_not_kept_without_limit():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
    with Channel(mine, "peer", messages(Greeting)) as channel, theirs:
        channel.limit = 1000
        theirs.setblocking(False)
        noise = struct.pack(">I", 500) * 50_000

        def flood():
            while True:
                with contextlib.suppress(BlockingIOError):
                    theirs.send(noise)
                channel.check()

        with pytest.raises(MalformedError, match="not requested"):
            flood()


def test_a_request_that_makes_no_sense_is_refused_by_name():
    settings = Settings(test="write-bw", planes=Planes(count=1))
    refused = []
    with Server(settings, "127.0.0.1", 0) as server:
        thread, _ = in_background(server.serve, lambda result: None, lambda *said: refused.append(said))
        with dial(perftest.PROTOCOL, "127.0.0.1", server.port, "") as channel:
            data = {"test": "write-bw", "qps": 0, "buffer": 1, "depth": 1}
            with (
                device().open() as context,
                pytest.raises(ConnectError, match=r"refuses: .*malformed message: qps"),
                handshake.calling(channel, context, data=data),
            ):
                pass
    thread.join(20)
    [(peer, reason)] = refused
    assert peer.startswith("127.0.0.1:")
    assert "qps" in reason
