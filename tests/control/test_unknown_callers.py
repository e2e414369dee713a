"""What strangers cannot do to those who serve and to those who are served."""

import contextlib
import resource
import socket
import struct
import subprocess
import sys
import textwrap
import threading

import pytest

from openmrc.collectives import TcpStore
from openmrc.collectives.elastic import Coordinator, Elastic
from openmrc.connect import connect, listen
from openmrc.control import (
    Budget,
    Channel,
    ExhaustedError,
    GreetingError,
    Limits,
    Listener,
    LostError,
    Protocol,
    Token,
    dial,
)
from openmrc.control.budget import neighbourhood
from openmrc.control.tcp import wait_readable
from openmrc.errors import ArgumentError, ClosedError, ConnectError
from openmrc.handshake import Ready
from openmrc.perftest.client import measuring
from openmrc.perftest.server import Server
from openmrc.perftest.settings import Settings
from openmrc.planes import Planes
from tests.helpers.ends import device, make_end
from tests.helpers.peers import both, greeting, in_background, message

SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = Token(SECRET)
A = Protocol("test-a", 1, Ready)


@contextlib.contextmanager
def silent(address, count):
    """Connections that say nothing."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(count)]


def still_there(connection):
    """Whether the other end has not ended a silent connection."""
    return not wait_readable(connection, timeout=0)


# --- no words end a thread ----------------------------------------------------------------------------------

WORDS = [
    b'{"join":"\\ud800"}\n',
    b'{"join":"00","proof":"\\ud800"}\n',
    message(b'{"type":"greeting","handshake":2,"protocol":"\\ud800","version":1}'),
    greeting(protocol="openmrc-elastic", nonce="\ud800"),
    greeting(protocol="openmrc-elastic") + message(b'{"type":"\\ud800"}'),
    greeting(protocol="openmrc-elastic") + message(b"[" * 900),
    greeting(protocol="openmrc-elastic") + message({"type": "vote", "ok": True}),
    greeting(protocol="openmrc-elastic") + message({"type": "joined", "store": 1}),
    greeting(protocol="openmrc-elastic", version=10**600),
]


@pytest.mark.parametrize("token", [None, TOKEN])
def test_no_words_of_a_stranger_end_an_elastic_job(token):
    with Coordinator(token=token) as coordinator, Elastic(coordinator.address, token=token) as job:
        job.begin()
        for words in WORDS:
            with socket.create_connection(coordinator.address, timeout=20) as stranger:
                stranger.sendall(words)
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_WR)
                    while stranger.recv(4096):
                        pass
        assert job.commit()
        assert (job.size, job.generation) == (1, 1)


# --- descriptors --------------------------------------------------------------------------------------------

STORE = """
    import resource, sys
    from openmrc.collectives import TcpStore
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with TcpStore("127.0.0.1", 0, serve=True) as store:
        print(store.address[1], flush=True)
        sys.stdin.read()
"""


def test_a_store_survives_more_idle_connections_than_it_has_descriptors():
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STORE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        address = ("127.0.0.1", int(child.stdout.readline()))
        with silent(address, 300), TcpStore(*address, timeout=20) as during:
            during.set("a", b"1")
        with TcpStore(*address, timeout=20) as after:
            assert after.get("a", 5) == b"1"
    finally:
        child.communicate()


def test_strangers_are_limited_together_and_for_each_address():
    limits = Limits(strangers=6, per_address=4, greeting=60)
    with Listener(A, "127.0.0.1", 0, limits=limits) as listener:
        thread, outcome = in_background(listener.accept, 60)
        with silent(listener.address, 9) as strangers:
            with dial(A, *listener.address, "") as caller:
                caller.send(Ready())
                thread.join(30)
            ended = [not still_there(each) for each in strangers]
        outcome[0].close()
    # The caller was one of the four for a moment.
    assert ended == [True] * 6 + [False] * 3


def test_many_that_come_at_once_from_one_address_are_all_served_in_the_end():
    limits = Limits(strangers=4, per_address=4)
    with TcpStore("127.0.0.1", 0, serve=True, token=TOKEN, limits=limits) as store:

        def come(number):
            with TcpStore(*store.address, token=TOKEN, timeout=60) as other:
                other.set(f"rank {number}", b"1")

        comers = [in_background(come, number) for number in range(48)]
        for thread, _ in comers:
            thread.join(90)
        assert [outcome for _, outcome in comers] == [[None]] * 48


def test_addresses_of_one_ipv6_site_count_as_one():
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:1") == "2001:db8::/64"
    assert neighbourhood("fe80::1%eth0") == "fe80::/64"
    assert neighbourhood("10.0.0.1") != neighbourhood("10.0.0.2")


# --- nobody waits for the silent ----------------------------------------------------------------------------


def test_a_client_of_write_bw_waits_for_no_silent_stranger():
    settings = Settings(test="write-bw", sizes=(4096,), iterations=10, planes=Planes(count=1))
    with Server(settings, "127.0.0.1", 0) as server, silent(("127.0.0.1", server.port), 3) as strangers:
        thread, _ = in_background(server.serve)
        with measuring(settings, "127.0.0.1", server.port) as found:
            assert len(list(found)) == 1
        # Whoever is served in turn is served once these have been given up.
        assert all(map(still_there, strangers))
        thread.join(30)


def test_a_peer_of_listen_waits_for_no_silent_stranger():
    with device().open() as one, device().open() as two, listen("127.0.0.1", 0) as listener:
        a, b = make_end(one), make_end(two)
        with silent(listener.address, 3) as strangers:
            client, server = both(
                listener,
                lambda: listener.accept(b.qp, timeout=60),
                lambda: connect(*listener.address, a.qp, timeout=60),
            )
            client.close()
            server.close()
            assert all(map(still_there, strangers))


# --- memory -------------------------------------------------------------------------------------------------


def test_a_request_for_gigabytes_is_refused_before_they_are_taken():
    server_settings = Settings(test="write-bw", sizes=(4096,), iterations=10, planes=Planes(count=1))
    refused = []
    with Server(server_settings, "127.0.0.1", 0) as server:
        thread, outcome = in_background(server.serve, lambda result: None, lambda *said: refused.append(said))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        greedy = Settings(test="write-bw", sizes=(1 << 30,), iterations=1, planes=Planes(count=1))
        channel = dial_request(server.port, greedy)
        with channel, pytest.raises(ConnectError, match=r"refuses: .* bytes of memory, of 268435456"):
            channel.expect(Ready, 20)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10  # KiB
        with measuring(server_settings, "127.0.0.1", server.port) as found:
            assert len(list(found)) == 1
        thread.join(30)
    assert outcome == [None]
    assert "bytes of memory" in refused[0][1]


def dial_request(port, settings):
    """A client that asks for what these settings need, and does nothing more."""
    from openmrc.handshake.messages import Request
    from openmrc.perftest import protocol as p
    from openmrc.wire import EvFormat

    wanted = p.Wanted(test="write-bw", qps=1, buffer=settings.buffer, depth=1)
    channel = dial(p.PROTOCOL, "127.0.0.1", port, "")
    located = {"addresses": [("127.0.0.1", 4791)], "ev_format": EvFormat.UDP, "path_mtu": 4096}
    channel.send(Request(**located, data=wanted.model_dump(mode="json")))
    return channel


def test_memory_for_a_message_is_reserved_when_its_length_is_known():
    refused = []
    with Listener(
        A, "127.0.0.1", 0, budget=Budget(4 << 20, 1 << 20), on_refused=lambda *said: refused.append(said[1])
    ) as listener:
        thread, outcome = in_background(listener.accept, 60)
        with socket.create_connection(listener.address, timeout=20) as greedy:
            greedy.sendall(greeting(protocol="test-a") + struct.pack(">I", 100_000))
            while greedy.recv(4096):
                pass
        listener.close()
        thread.join(20)
    assert isinstance(outcome[0], ClosedError)
    assert refused == [
        "a message of 100000 bytes needs 2400000 bytes of memory, of 1048576 that peers of this address may"
        " use here"
    ]


def test_a_budget_binds_an_address_and_all_together_and_is_given_back():
    budget = Budget(100, 60)
    one, same, other = (budget.account(each) for each in ("10.0.0.1", "10.0.0.1", "10.0.0.2"))
    one.reserve(40, "this")
    with pytest.raises(
        ExhaustedError, match="that needs 30 bytes of memory, of 60 that peers of this address"
    ):
        same.reserve(30, "that")
    same.reserve(20, "that")
    with pytest.raises(ExhaustedError):
        other.reserve(50, "more than is left for all")
    same.trusted = True
    same.reserve(40, "a holder of the token is bound by the limit of all")
    one.close()
    one.close()
    assert budget.used == 60
    same.release(60)
    assert budget.used == 0
    with pytest.raises(ExhaustedError, match="has ended"):
        one.reserve(1, "what is closed")


def test_values_of_a_store_count_for_the_address_of_their_rank_until_they_are_replaced():
    with TcpStore("127.0.0.1", 0, serve=True, budget=Budget(1 << 30, 3 << 20)) as store:
        for _ in range(10):
            store.set("same", bytes(20_000))
        store.set("small", b"1")

        def fill():
            for i in range(200):
                store.set(f"key {i}", bytes(20_000))

        with pytest.raises(ConnectError, match="has gone"):
            fill()
        with TcpStore(*store.address) as other:
            assert other.get("small", 5) == b"1"


# --- tokens -------------------------------------------------------------------------------------------------


def test_every_server_asks_for_a_token_of_16_bytes():
    with pytest.raises(ArgumentError, match="16 to 4096 bytes"):
        Token("short")


@pytest.mark.parametrize("mine", [None, Token(SECRET[::-1])])
def test_a_store_with_a_token_is_read_by_its_holders_only(mine):
    with (
        TcpStore("127.0.0.1", 0, serve=True, token=TOKEN) as store,
        pytest.raises(GreetingError, match=r"different tokens|asks for a token"),
    ):
        TcpStore(*store.address, token=mine, timeout=20)


def test_a_changed_byte_after_the_proofs_ends_a_connection_of_the_store():
    with (
        TcpStore("127.0.0.1", 0, serve=True, token=TOKEN) as store,
        socket.create_server(("127.0.0.1", 0)) as between,
    ):

        def forward(source, target, change):
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    target.sendall(change(data))
                target.shutdown(socket.SHUT_WR)

        def relay():
            caller, _ = between.accept()
            with caller, socket.create_connection(store.address) as server:
                back = threading.Thread(target=forward, args=[server, caller, lambda data: data])
                back.start()
                forward(caller, server, lambda data: data.replace(b'"key":"good"', b'"key":"evil"'))
                back.join(20)

        thread = threading.Thread(target=relay)
        thread.start()
        with TcpStore(*between.getsockname(), token=TOKEN, timeout=20) as victim:
            victim.set("fine", b"1")
            with pytest.raises(ConnectError, match="has gone"):
                victim.set("good", b"2")
        thread.join(20)
        assert store.get("fine", 5) == b"1"


def test_a_rank_that_asks_without_end_is_sent_away_and_the_others_are_served():
    from openmrc.collectives.store import PROTOCOL, _Get

    with TcpStore("127.0.0.1", 0, serve=True) as store, dial(PROTOCOL, *store.address, "") as greedy:
        for number in range(17):
            greedy.send(_Get(number=number, key=f"never {number}", wait=3600.0))
        with pytest.raises(LostError, match=r"closed the connection|broke"):
            receive_all(greedy)
        store.set("a", b"1")
        assert store.get("a", 5) == b"1"


def receive_all(channel):
    while True:
        channel.receive(20)


def test_a_peer_of_another_version_is_told_so():
    with (
        TcpStore("127.0.0.1", 0, serve=True) as store,
        pytest.raises(GreetingError, match="version 2 of openmrc-store meets version 1: both ends must"),
    ):
        dial(Protocol("openmrc-store", 2), *store.address, "")


def test_a_store_that_falls_silent_keeps_nobody_beyond_the_time_of_the_call():
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread, _ = in_background(greet_and_fall_silent, server)
        with TcpStore(*server.getsockname(), timeout=20) as store, pytest.raises(TimeoutError):
            store.get("key", 0.1)
        thread.join(20)


def greet_and_fall_silent(server):
    from openmrc.collectives.store import PROTOCOL
    from openmrc.control.greeting import Answer

    connection, _ = server.accept()
    with Channel(connection, "caller", PROTOCOL.messages) as channel:
        answer = Answer(channel, PROTOCOL, None)
        assert answer.take(channel.receive(20))
        with contextlib.suppress(ConnectError):
            channel.receive(20)
            channel.receive(20)
