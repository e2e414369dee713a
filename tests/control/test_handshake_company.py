"""The handshake in company: tokens, replays, changed bytes, foreign addresses, peers that vanish or hang."""

import contextlib
import json
import os
import re
import socket
import stat
import struct
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import connect as connect_module
from openmrc.connect import connect, listen
from openmrc.control import Channel, GreetingError, Listener, Token
from openmrc.control.messages import messages
from openmrc.control.tcp import wait_readable
from openmrc.errors import ArgumentError, ConnectError, DeadlineError
from openmrc.handshake import AddressRule, Protocol, end
from openmrc.perftest import protocol as perftest
from openmrc.transfer import protocol as transfer
from openmrc.verbs import QpState
from tests.helpers.ends import device, make_end
from tests.helpers.peers import accept, both, greeting, message, request, turned_away

SECRET = "0123456789abcdef0123456789abcdef"
TOKEN, OTHER = Token(SECRET), Token("another token of enough length")

A = Protocol("test-a", 1)


@pytest.fixture
def ends():
    with device().open() as one, device().open() as two:
        yield make_end(one), make_end(two)


class Tap:
    """Stands between two ends: records what passes, and can change it."""

    def __init__(self, port, change=lambda direction, data: data):
        self.seen = {"caller": b"", "listener": b""}
        self._change = change
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        caller, _ = self._server.accept()
        with caller, socket.create_connection(("127.0.0.1", self._target)) as listener:
            there = {caller: ("caller", listener), listener: ("listener", caller)}
            with contextlib.suppress(OSError):
                while True:
                    wait_readable(caller, listener)
                    for source, (name, target) in there.items():
                        if not wait_readable(source, timeout=0):
                            continue
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        self.seen[name] += data
                        target.sendall(self._change(name, data))

    def close(self):
        self._server.close()


def meet(ends, token, other, change=lambda direction, data: data, **more):
    """Connects two queue pairs through a tap; what each end got, and the tap."""
    a, b = ends
    refused = []
    told = {"on_refused": lambda peer, reason: refused.append(GreetingError(reason))}
    with listen("127.0.0.1", 0, token=other, **told, **more) as listener:
        tap = Tap(listener.address[1], change)

        def call():
            try:
                return connect("127.0.0.1", tap.port, a.qp, token=token, timeout=20)
            except GreetingError:
                listener.close()
                raise

        mine, theirs = both(listener, lambda: listener.accept(b.qp, timeout=20), call)
        tap.close()
    return mine, refused[0] if refused else theirs, tap


# --- tokens -------------------------------------------------------------------------------------------------


def test_two_ends_with_one_token_connect_and_never_send_it(ends):
    mine, theirs, tap = meet(ends, TOKEN, Token(SECRET.encode()))
    with mine, theirs:
        mine.send({"a": [1]})
        assert theirs.receive(20) == {"a": [1]}
    assert (ends[0].qp.state, ends[1].qp.state) == (QpState.RTS, QpState.RTS)
    for seen in tap.seen.values():
        assert len(seen) > 500
        assert SECRET.encode() not in seen
        assert bytes.fromhex(SECRET) not in seen


@pytest.mark.parametrize(("token", "other"), [(TOKEN, OTHER), (TOKEN, None), (None, TOKEN)])
def test_ends_that_do_not_share_a_token_part_before_anything_is_told(ends, token, other):
    mine, theirs, tap = meet(ends, token, other)
    for error in (mine, theirs):
        assert isinstance(error, GreetingError)
        assert re.search("different tokens|end asks for a token", str(error))
    for seen in tap.seen.values():
        assert b"addresses" not in seen
    assert {end.qp.state for end in ends} == {QpState.RESET}


def test_a_changed_byte_after_the_proofs_ends_the_connection(ends):
    change = lambda name, data: data.replace(b'"path_mtu":4096', b'"path_mtu":1024')  # noqa: E731
    mine, theirs, _ = meet(ends, TOKEN, TOKEN, change)
    assert isinstance(theirs, ConnectError)
    assert "not from the holder of the token" in str(theirs)
    assert isinstance(mine, ConnectError)


def test_taking_the_nonces_out_of_both_greetings_gains_nothing(ends):
    mine, theirs, _ = meet(ends, TOKEN, TOKEN, lambda name, data: re.sub(rb',"nonce":"[0-9a-f]+"', pad, data))
    assert isinstance(mine, ConnectError)
    assert "asks for a token" in str(theirs)


def pad(match):
    """White space of the same length, so that the frame keeps its."""
    return b" " * len(match[0])


def test_a_recorded_conversation_cannot_be_replayed(ends):
    mine, theirs, tap = meet(ends, TOKEN, TOKEN)
    mine.close()
    theirs.close()
    ends[1].qp.modify(QpState.RESET)

    def replay(port):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(tap.seen["caller"])
            return stranger.makefile("rb").read()

    answer, reason = turned_away(ends[1], replay, token=TOKEN)
    assert reason == "the two ends have different tokens"
    assert b"addresses" not in answer
    assert ends[1].qp.state is QpState.RESET


def test_a_listener_that_sends_the_callers_proof_back_is_found_out(ends):
    def echo(server):
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=[server])
        thread.start()
        # The echo has even the caller's nonce, so only the roles differ.
        with pytest.raises(GreetingError, match="different tokens"):
            connect("127.0.0.1", server.getsockname()[1], ends[0].qp, token=TOKEN, timeout=20)
        thread.join(20)


def test_the_token_shows_nowhere():
    assert SECRET not in repr(TOKEN)
    assert SECRET not in str(TOKEN.__dict__.keys())


def test_tokens_come_from_files_that_not_everybody_can_read_and_from_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o644)
    with pytest.raises(ArgumentError, match="every user"):
        Token.from_file(file)
    file.chmod(0o640)
    monkeypatch.setenv("OPENMRC_TOKEN", SECRET)
    transcript = os.urandom(32)
    found = [Token.from_file(file), Token.from_environment()]
    assert {each.proof("caller", transcript) for each in found} == {TOKEN.proof("caller", transcript)}
    assert TOKEN.proof("caller", transcript) != TOKEN.proof("listener", transcript)
    monkeypatch.setenv("OPENMRC_TOKEN", "short")
    with pytest.raises(ArgumentError, match="OPENMRC_TOKEN: a token has 16"):
        Token.from_environment()
    monkeypatch.delenv("OPENMRC_TOKEN")
    assert Token.from_environment() is None
    file.write_text("short")
    with pytest.raises(ArgumentError, match="16 to 4096 bytes"):
        Token.from_file(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


# --- addresses ----------------------------------------------------------------------------------------------

FOREIGN = [["203.0.113.9", 4791]]


def rogue_caller(port, *sent):
    """Sends messages whatever comes back, and returns all that does."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"".join(sent))
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


@pytest.mark.parametrize("where", ["request", "accept"])
def test_a_caller_cannot_offer_the_address_of_a_third_host(ends, where):
    _, b = ends
    sent = [greeting()]
    sent += [request(addresses=FOREIGN)] if where == "request" else [request(), accept(addresses=FOREIGN)]
    with listen("127.0.0.1", 0) as listener:
        answer, error = both(
            listener,
            lambda: listener.accept(b.qp, timeout=20),
            lambda: rogue_caller(listener.address[1], *sent),
        )
    assert "offers the address 203.0.113.9, which is not the one it connects from" in str(error)
    assert b"203.0.113.9" in answer
    assert b.qp.state is QpState.RESET


def test_a_listener_cannot_offer_the_address_of_a_third_host(ends):
    a, _ = ends
    offer = {"type": "offer", "ev_format": "udp", "path_mtu": 4096, "device": "x", "qps": [], "buffers": []}

    def rogue(server):
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(greeting() + message(offer | {"addresses": FOREIGN}))
            while connection.recv(1 << 16):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=rogue, args=[server])
        thread.start()
        with pytest.raises(ConnectError, match=r"offers the address 203\.0\.113\.9"):
            connect("127.0.0.1", server.getsockname()[1], a.qp, timeout=20)
        thread.join(20)
    assert a.qp.state is QpState.RESET


def rule_says(rule, address, *, local="10.0.0.1", remote="10.0.0.2", authenticated=False):
    try:
        rule.check([(address, 4791)], local=local, remote=remote, authenticated=authenticated)
    except ConnectError:
        return False
    return True


def test_an_address_is_a_peers_own_if_it_connects_from_it_or_both_are_here_or_the_plan_says_so():
    rule = AddressRule()
    assert rule_says(rule, "10.0.0.2")
    assert not rule_says(rule, "10.0.0.3")
    assert not rule_says(rule, "127.0.0.1")
    assert not rule_says(rule, "10.0.0.1"), "ours is not the peer's"
    assert rule_says(rule, "127.1.2.3", local="127.0.0.1", remote="127.0.0.1")
    for nobodys in ("203.0.113.9", "0.0.0.0", "224.0.0.1", "255.255.255.255"):
        assert not rule_says(rule, nobodys, local="127.0.0.1", remote="127.0.0.1")
    planned = AddressRule(siblings=lambda address: {"10.0.0.2": ["10.1.0.2"]}.get(address, []))
    assert rule_says(planned, "10.1.0.2")
    assert not rule_says(planned, "10.1.0.2", remote="10.0.0.3")
    assert rule_says(rule, "fe80::1", remote="fe80::1%eth0")


def test_other_addresses_are_allowed_by_a_list_or_a_token_and_the_list_binds_holders_too():
    rule = AddressRule(["10.1.0.0/16", "fd00::7"])
    assert rule_says(rule, "10.1.200.3")
    assert rule_says(rule, "fd00::7")
    for authenticated in (False, True):
        assert not rule_says(rule, "10.2.0.1", authenticated=authenticated)
    assert rule_says(AddressRule(), "10.2.0.1", authenticated=True)
    with pytest.raises(ArgumentError, match=r"'10\.1\.0\.1/8' is no address"):
        AddressRule(["10.1.0.1/8"])


def test_an_allowed_address_connects(ends, monkeypatch):
    _, b = ends
    # Nothing routes to that network.
    monkeypatch.setattr(end, "path_mtu", lambda local, remote, largest: largest)
    with listen("127.0.0.1", 0, allow_addresses=["203.0.113.0/24"]) as listener:
        sent = [greeting(), request(addresses=FOREIGN), accept(addresses=FOREIGN)]
        answer, error = both(
            listener,
            lambda: listener.accept(b.qp, timeout=20),
            lambda: rogue_caller(listener.address[1], *sent),
        )
    assert b'"ready"' in answer, error


# --- peers that vanish, or stay and do nothing --------------------------------------------------------------


WORDS = [greeting(), request(), accept()]


@pytest.mark.parametrize("sent", [WORDS[:count] for count in range(2, 4)])
def test_a_caller_that_vanishes_leaves_the_queue_pair_in_reset_and_the_listener_listening(ends, sent):
    a, b = ends
    with listen("127.0.0.1", 0) as listener:
        _, error = both(
            listener,
            lambda: listener.accept(b.qp, timeout=20),
            lambda: rogue_caller(listener.address[1], *sent),
        )
        assert isinstance(error, ConnectError)
        assert b.qp.state is QpState.RESET
        client, server = both(
            listener,
            lambda: listener.accept(b.qp, timeout=20),
            lambda: connect("127.0.0.1", listener.address[1], a.qp),
        )
        client.close()
        server.close()
    assert (a.qp.state, b.qp.state) == (QpState.RTS, QpState.RTS)


@pytest.mark.parametrize("sent", [WORDS[:count] for count in range(2, 4)])
def test_a_caller_that_falls_silent_is_given_up_at_the_deadline(ends, sent):
    _, b = ends
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.address) as silent:
        silent.sendall(b"".join(sent))
        with pytest.raises(ConnectError, match="did not answer"):
            listener.accept(b.qp, timeout=0.3)
    assert b.qp.state is QpState.RESET


def test_a_peer_that_does_not_read_cannot_hold_a_sender():
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        mine, _ = server.accept()
    protocol = messages(transfer.Plan)
    with theirs, Channel(mine, "peer", protocol) as channel:
        verdict = transfer.Verdict(error="x" * 400)
        with pytest.raises(ConnectError, match=r"did not read within 0\.2 s"):
            send_for_ever(channel, transfer.Plan(verdicts=[verdict] * 1000))
        with pytest.raises(ConnectError, match="broke"):
            channel.send(transfer.Plan(verdicts=[]))


def send_for_ever(channel, message):
    while True:
        channel.send(message, timeout=0.2)


def test_a_flood_after_a_refusal_cannot_hold_the_listener():
    with Listener(A, "127.0.0.1", 0) as listener:
        stop = threading.Event()

        def flood():
            with socket.create_connection(listener.address) as stranger, contextlib.suppress(OSError):
                stranger.sendall(greeting())
                stranger.recv(1)  # The refusal.
                while not stop.is_set():
                    stranger.sendall(bytes(1 << 16))

        thread = threading.Thread(target=flood)
        thread.start()
        begun = time.monotonic()
        with pytest.raises(DeadlineError, match="refused: the other end speaks 'openmrc-connect'"):
            listener.accept(3)
        assert time.monotonic() - begun < 15
        stop.set()
        thread.join(20)


# --- path MTU -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("narrow", ["caller", "listener"])
def test_both_ends_use_what_the_narrower_of_their_routes_carries(ends, monkeypatch, narrow):
    a, b = ends
    own = {"caller": a, "listener": b}[narrow].context.addresses[0]

    def carried(local, remote, largest):
        return min(largest, 1344) if local[0] == own else largest

    monkeypatch.setattr(end, "path_mtu", carried)
    mine, theirs, _ = meet(ends, None, None)
    mine.close()
    theirs.close()
    assert [each.qp.query().attr.path_mtu for each in ends] == [1344, 1344]


# --- whatever bytes -----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


def fields_of(protocol):
    """Objects with the types and the field names of a protocol's messages, and values of every kind."""
    kinds = {}
    for kind in schema_of(protocol):
        kinds[kind["properties"]["type"]["const"]] = list(kind["properties"])
    return st.sampled_from(sorted(kinds)).flatmap(
        lambda name: st.fixed_dictionaries(
            {"type": st.just(name)}, optional={field: json_values for field in kinds[name] if field != "type"}
        )
    )


def schema_of(protocol):
    definitions = protocol.messages.json_schema()["$defs"].values()
    return [each for each in definitions if "type" in each.get("properties", ())]


PROTOCOLS = [connect_module.PROTOCOL, perftest.PROTOCOL, transfer.PROTOCOL]


def send_noise(protocol, sealed, examples):
    """Sends a channel what its protocol may and may not carry; nothing but a ConnectError may come of it."""
    noise = fields_of(protocol) | json_values | st.binary(max_size=40)

    @settings(max_examples=examples)
    @given(st.lists(noise, max_size=4), st.binary(max_size=8))
    def check(values, rest):
        one, two = socket.socketpair()
        with one, Channel(TcpLike(two), "noise", protocol.messages) as channel:
            if sealed:
                channel.seal(b"sent" * 8, b"received" * 4)
            channel.limit = 1 << 16
            one.sendall(b"".join(map(framed, values)) + rest)
            one.close()
            got = []
            with pytest.raises(ConnectError) as caught:
                receive_all(channel, got)
            assert str(caught.value).isprintable()
            assert not (sealed and got), "a message without a tag came through"

    check()


def receive_all(channel, got):
    while True:
        got.append(channel.receive(20))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.name)
@pytest.mark.parametrize("sealed", [False, True])
def test_no_message_whatever_its_fields_does_more_than_a_connect_error(protocol, sealed):
    send_noise(protocol, sealed, examples=60)


@pytest.mark.long
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.name)
@pytest.mark.parametrize("sealed", [False, True])
def test_no_message_in_many_does_more_than_a_connect_error(protocol, sealed):
    send_noise(protocol, sealed, examples=2_000)


def framed(value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


class TcpLike(socket.socket):
    """One end of a socket pair, which has no options of TCP."""

    def __init__(self, original):
        super().__init__(original.family, original.type, original.proto, original.detach())

    def setsockopt(self, *arguments):
        """Nothing: keepalive is for TCP."""
