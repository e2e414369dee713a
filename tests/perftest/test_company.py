"""`write-bw` and `write-lat` in company: tokens, silent and lying peers, figures that are none."""

import contextlib
import os
import socket
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import handshake
from openmrc.control import GreetingError, Listener, LostError, MalformedError, Token, dial
from openmrc.errors import ConnectError
from openmrc.handshake import AddressRule
from openmrc.perftest import protocol as p
from openmrc.perftest.client import measuring
from openmrc.perftest.endpoint import Endpoint
from openmrc.perftest.results import checked
from openmrc.perftest.server import Server
from openmrc.perftest.settings import Settings
from openmrc.planes import Planes
from tests.helpers.commands import command, one_line_error, run
from tests.helpers.peers import greeting, in_background, message
from tests.helpers.ranks import free_port

SECRET = "0123456789abcdef0123456789abcdef"
ONE = Planes(count=1)


def bandwidth(**changes):
    return Settings(**({"test": "write-bw", "sizes": (4096,), "iterations": 10, "planes": ONE} | changes))


@contextlib.contextmanager
def serving(refused=None, **changes):
    """A server in a thread; what became of it is in the list."""
    with Server(bandwidth(**changes), "127.0.0.1", 0) as server:
        shown = []
        refused = [] if refused is None else refused
        thread, outcome = in_background(
            server.serve, shown.append, lambda peer, reason: refused.append(reason)
        )
        yield server, outcome, shown
        thread.join(30)
        assert not thread.is_alive()


@contextlib.contextmanager
def client(port, **changes):
    """A client that has shaken hands and does nothing more by itself."""
    settings = bandwidth(**changes)
    with contextlib.ExitStack() as stack:
        channel = stack.enter_context(dial(p.PROTOCOL, "127.0.0.1", port, ""))
        context = ONE.open("127.0.0.1", "127.0.0.1")
        endpoint = stack.enter_context(Endpoint(context, qps=1, depth=128, buffer=4096, impairments=()))
        wanted = p.Wanted(test=settings.test, qps=1, buffer=4096, depth=128)
        with handshake.calling(channel, context, data=wanted.model_dump(mode="json")) as calling:
            calling.accept(endpoint.end(4096))
        yield channel


RUN = p.Measurement(size=4096, iterations=10)


@pytest.mark.parametrize("test", ["write-bw", "write-lat"])
def test_both_commands_take_a_token_and_serve_only_its_holders(tmp_path, test):
    port = free_port()
    for name, secret in (("token", SECRET), ("wrong", SECRET[::-1])):
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    environment = {**os.environ, "OPENMRC_TOKEN": SECRET}
    with command(test, "-p", port, "--token-file", tmp_path / "token") as server:
        server.line()
        flags = [test, "127.0.0.1", "-p", port, "-n", 10]
        without = run(*flags)
        wrong = run(*flags, "--token-file", tmp_path / "wrong")
        right = run(*flags, env=environment)
        assert server.wait() == 0
    assert "asks for a token" in one_line_error(without)
    assert "different tokens" in one_line_error(wrong)
    assert right.returncode == 0, right.stderr


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        greeting(protocol="openmrc-perftest", version=p.PROTOCOL.version),
        greeting(protocol="openmrc-perftest", version=p.PROTOCOL.version)[:30],
    ],
    ids=["nothing", "greeting", "half a greeting"],
)
def test_who_vanishes_in_the_handshake_does_not_end_the_server(sent):
    with serving() as (server, outcome, shown):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stranger:
            stranger.sendall(sent)
        with measuring(bandwidth(), "127.0.0.1", server.port) as found:
            assert len(list(found)) == 1
    assert outcome == [None]
    assert len(shown) == 1


LOCATED = {"type": "request", "addresses": [["127.0.0.1", 4791]], "ev_format": "udp", "path_mtu": 4096}
WANTED = {"test": "write-bw", "qps": 1, "buffer": 4096, "depth": 1}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (LOCATED | {"addresses": [["203.0.113.9", 4791]]}, "offers the address 203.0.113.9"),
        (LOCATED | {"addresses": [["::1", 4791]]}, "IPv6 ports"),
        (LOCATED | {"data": WANTED | {"test": "write-lat"}}, "this is a server for write-bw"),
        (LOCATED | {"data": WANTED | {"qps": 1024, "depth": 32768}}, "bytes of memory, of"),
        (LOCATED | {"data": WANTED | {"depth": 0}}, "malformed"),
        ({"type": "ready"}, "not allowed here"),
        ({"type": "refused", "reason": "\x1b[31m"}, "refuses"),
    ],
)
def test_a_client_that_cannot_be_served_is_refused_and_the_next_is_served(request_, reason):
    refused = []
    with serving(refused) as (server, outcome, shown):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as rogue:
            rogue.sendall(
                greeting(protocol="openmrc-perftest", version=p.PROTOCOL.version)
                + message({"data": WANTED} | request_ if request_["type"] == "request" else request_)
            )
            rogue.shutdown(socket.SHUT_WR)
            assert b'"offer"' not in rogue.makefile("rb").read()
        with measuring(bandwidth(), "127.0.0.1", server.port) as found:
            assert len(list(found)) == 1
    assert outcome == [None]
    assert len(shown) == 1
    assert len(refused) == 1
    assert reason in refused[0]


@pytest.mark.parametrize("said", [[], [RUN], [RUN, p.Finished()]])
def test_a_client_that_falls_silent_is_given_up(monkeypatch, said):
    monkeypatch.setattr(p, "IDLE_TIMEOUT", 0.6)
    with serving() as (server, outcome, _), client(server.port) as channel:
        for each in said:
            channel.send(each)
        begun = time.monotonic()
        with contextlib.suppress(ConnectError):
            while True:
                channel.receive(25)
        assert time.monotonic() - begun < 15
    assert isinstance(outcome[0], LostError)


def test_a_client_that_takes_longer_than_allowed_is_given_up():
    with (
        serving(max_time=1.0) as (server, outcome, _),
        measuring(bandwidth(iterations=None, duration=60.0), "127.0.0.1", server.port) as found,
        pytest.raises(ConnectError),
    ):
        list(found)
    assert "given up after 1 s" in str(outcome[0])


@contextlib.contextmanager
def rogue_server(behave):
    """A server that shakes hands and then does what the test wants."""

    def body():
        with contextlib.suppress(ConnectError), listener.accept(20) as channel:
            context = ONE.open("127.0.0.1", "127.0.0.1")
            with Endpoint(context, qps=1, depth=128, buffer=4096, impairments=()) as endpoint:
                with handshake.answering(channel) as answering:
                    answering.offer(endpoint.end(4096))
                behave(channel)
                while True:
                    channel.receive(30)

    with Listener(p.PROTOCOL, "127.0.0.1", 0) as listener:
        thread = threading.Thread(target=body)
        thread.start()
        yield listener.address[1]
        thread.join(40)


@pytest.mark.parametrize("test", ["write-bw", "write-lat"])
def test_a_server_that_never_writes_or_never_ends_is_given_up(monkeypatch, test):
    monkeypatch.setattr(p, "IDLE_TIMEOUT", 1.2)
    with rogue_server(lambda channel: channel.send(p.Started())) as port:
        begun = time.monotonic()
        with (
            measuring(bandwidth(test=test), "127.0.0.1", port) as found,
            pytest.raises(ConnectError, match="was given up: no new data"),
        ):
            list(found)
        assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "figures",
    [
        {},
        {"size": "\x1b[31m"},
        {"size": 1, "iterations": 1, "min_us": float("nan")},
        {"size": 1},
    ],
)
@pytest.mark.parametrize("test", ["write-bw", "write-lat"])
def test_figures_of_a_lying_client_are_no_traceback(test, figures):
    with pytest.raises(MalformedError, match="figures"):
        checked(test, figures, "client")


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.text(max_size=8), st.none() | st.floats() | st.text(max_size=5) | st.lists(st.floats())
    )
)
def test_whatever_figures_come_are_checked(figures):
    with pytest.raises(MalformedError):
        checked("write-bw", figures, "client")


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 1e-9},
        {"iterations": 1 << 70},
        {"warmup": 1 << 70},
        {"size": 1 << 40},
        {"duration": 1.0},
        {"iterations": None},
    ],
)
def test_a_run_that_would_take_the_servers_memory_or_make_it_stumble_is_no_run(wrong):
    with serving() as (server, outcome, _), client(server.port) as channel:
        channel.send(p.Measurement.model_construct(**({"size": 4096, "iterations": 10} | wrong)))
        with contextlib.suppress(ConnectError):
            while True:
                channel.receive(25)
    assert isinstance(outcome[0], MalformedError)


def test_a_token_and_a_rule_travel_with_the_settings_to_the_other_process():
    token = Token(SECRET)
    mine = bandwidth(token=token, addresses=AddressRule(["127.0.0.0/8"]))
    with Server(mine, "127.0.0.1", 0) as server:
        thread, outcome = in_background(server.serve)
        with pytest.raises(GreetingError), measuring(bandwidth(), "127.0.0.1", server.port):
            pass
        with measuring(mine, "127.0.0.1", server.port) as found:
            assert len(list(found)) == 1
        thread.join(20)
    assert outcome == [None]
    result = run("write-bw", "--loopback", "-n", 10, env={**os.environ, "OPENMRC_TOKEN": SECRET})
    assert result.returncode == 0, result.stderr
