"""Random and mutated words at every listener: no thread ends, and the next honest peer is served."""

import contextlib
import json
import random
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, JsonValue

from openmrc.collectives import TcpStore
from openmrc.collectives import coordinator as coordination
from openmrc.collectives import store as storing
from openmrc.collectives.elastic import Coordinator, Elastic
from openmrc.connect import PROTOCOL as CONNECT
from openmrc.connect import connect, listen
from openmrc.control import Message, Protocol, Token, dial, tcp
from openmrc.control import Server as ControlServer
from openmrc.errors import ClosedError, Error
from openmrc.perftest import protocol as perftest
from openmrc.perftest.client import measuring
from openmrc.perftest.server import Server as PerftestServer
from openmrc.perftest.settings import Settings
from openmrc.planes import Planes
from openmrc.transfer import protocol as transfer
from openmrc.transfer.manifest import Source
from openmrc.transfer.receiver import Server as TransferServer
from openmrc.transfer.sender import Sender
from openmrc.transfer.store import Store
from tests.helpers.ends import device, make_end

TOKEN = Token("0123456789abcdef0123456789abcdef")
ONE = Planes(count=1)


@dataclass
class Target:
    """A server that is attacked."""

    protocol: Protocol
    address: tuple[str, int]
    serves: Any
    """Does what an honest peer does; raises if it is not served."""
    token: Token | None = None


# --- the servers --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def store(tmp_path, token=None):
    with TcpStore("127.0.0.1", 0, serve=True, token=token) as served:

        def serves():
            with TcpStore(*served.address, token=token, timeout=60) as other:
                other.set("honest", b"1")
                assert served.get("honest", 60) == b"1"

        yield Target(storing.PROTOCOL, served.address, serves, token)


@contextlib.contextmanager
def coordinator(tmp_path, token=None):
    with Coordinator(token=token) as served:

        def serves():
            with Elastic(served.address, token=token) as job:
                job.begin()

        yield Target(coordination.PROTOCOL, served.address, serves, token)


class Report(Message):
    """What an agent says to its controller."""

    type: Literal["report"] = "report"
    host: Annotated[str, Field(max_length=64)]
    counters: dict[str, int]
    data: JsonValue = None


class Noted(Message):
    """The controller's answer."""

    type: Literal["noted"] = "noted"
    reports: int


class Controller:
    """Counts what agents report."""

    def __init__(self):
        self.hosts = {}

    def bound(self, server):
        self.server = server

    def joined(self, peer):
        pass

    def arrived(self, peer, message):
        if not isinstance(message, Report):
            raise peer.unexpected(message)
        self.hosts[message.host] = self.hosts.get(message.host, 0) + 1
        self.server.send(peer, Noted(reports=self.hosts[message.host]))

    def left(self, peer):
        pass

    def timeout(self):
        return None

    def poll_timers(self):
        pass


@contextlib.contextmanager
def agents(tmp_path, token=None):
    protocol = Protocol("test-agents", 1, Report, Noted)
    listening = tcp.listen("127.0.0.1", 0)
    with ControlServer(protocol, Controller(), listening, token=token, name="test-agents") as served:

        def serves():
            assert served.alive
            with dial(protocol, *served.address, "", token=token) as agent:
                agent.send(Report(host="honest", counters={"drops": 1}))
                assert agent.expect(Noted).reports >= 1

        yield Target(protocol, served.address, serves, token)


def in_turn(serve, stop):
    """Serves one after the other in a thread, as a program does; only our own errors are expected."""

    def run():
        while not stop.is_set():
            try:
                serve()
            except ClosedError:
                return
            except (Error, OSError):
                pass

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@contextlib.contextmanager
def handshake(tmp_path, token=None):
    stop = threading.Event()
    with device().open() as one, device().open() as two, listen("127.0.0.1", 0, token=token) as listener:
        a, b = make_end(one), make_end(two)
        # A caller that is no peer after its request costs no more than this.
        thread = in_turn(lambda: listener.accept(b.qp, timeout=2).close(), stop)

        def serves():
            connect(*listener.address, a.qp, token=token, timeout=60).close()

        yield Target(CONNECT, listener.address, serves, token)
        stop.set()
        listener.close()
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def measurement(tmp_path, token=None):
    stop = threading.Event()
    settings = Settings(test="write-bw", sizes=(4096,), iterations=10, planes=ONE, token=token)
    with PerftestServer(settings, "127.0.0.1", 0) as server:
        thread = in_turn(server.serve, stop)

        def serves():
            with measuring(settings, "127.0.0.1", server.port) as found:
                assert len(list(found)) == 1

        yield Target(perftest.PROTOCOL, ("127.0.0.1", server.port), serves, token)
        stop.set()
        server.close()
        thread.join(60)
        assert not thread.is_alive()


@contextlib.contextmanager
def files(tmp_path, token=None):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    file = tmp_path / "file"
    file.write_text("honest")
    sent = iter(range(1000))
    with (
        Store(inbox, sync=False) as kept,
        TransferServer(kept, host="127.0.0.1", port=0, planes=ONE, token=token) as server,
    ):
        thread = threading.Thread(target=server.serve)
        thread.start()

        def serves():
            entry = transfer.Entry(path=f"honest{next(sent)}", size=6)
            with Sender("127.0.0.1", server.port, planes=ONE, token=token) as sender:
                assert sender.send([Source(file, entry)]).complete

        yield Target(transfer.PROTOCOL, ("127.0.0.1", server.port), serves, token)
        server.close()
        thread.join(60)
        assert not thread.is_alive()


# --- the fuzzer ---------------------------------------------------------------------------------------------

STRANGE = [
    *("", "\x00", "\ud800", "x" * 5000, "\u202e", "127.0.0.1", "udp", "write-bw"),
    *(-1, 0, 1, 1 << 31, 1 << 64, 10**400, -(10**400), 1.5, 1e308, float("nan"), float("inf")),
    *(None, True, [], {}, [[]], {"": {}}, [None] * 500),
]


class Fuzzer:
    """Draws what to send from the messages of a protocol."""

    def __init__(self, protocol, dice):
        self._protocol = protocol
        self._dice = dice
        definitions = protocol.messages.json_schema()["$defs"].values()
        kinds = [each for each in definitions if "const" in each.get("properties", {}).get("type", {})]
        self._kinds = {kind["properties"]["type"]["const"]: list(kind["properties"]) for kind in kinds}

    def value(self, depth=0):
        """Any value, of the kinds that break parsers and those that fit."""
        dice = self._dice
        match dice.randrange(6 if depth < 3 else 4):
            case 0 | 1:
                return dice.choice(STRANGE)
            case 2:
                return dice.randrange(70)
            case 3:
                return "".join(chr(dice.randrange(1, 0x11000)) for _ in range(dice.randrange(12)))
            case 4:
                return [self.value(depth + 1) for _ in range(dice.randrange(4))]
        return {str(dice.choice(STRANGE))[:20]: self.value(depth + 1) for _ in range(dice.randrange(4))}

    def message(self):
        """A message of the protocol with some of its fields, and perhaps another."""
        dice = self._dice
        kind = dice.choice(list(self._kinds))
        located = {"addresses": [["127.0.0.1", 4791]], "ev_format": "udp", "path_mtu": 4096}
        found = {name: located.get(name, self.value()) for name in self._kinds[kind] if dice.random() < 0.9}
        if dice.random() < 0.2:
            found[str(self.value())[:30]] = self.value()
        return found | {"type": kind if dice.random() < 0.95 else self.value()}

    def body(self):
        """A body of a frame."""
        dice = self._dice
        if dice.random() < 0.1:
            return dice.randbytes(dice.randrange(200))
        if dice.random() < 0.05:
            return dice.choice([b"[", b'{"a":', b"9", b'"']) * dice.randrange(1, 3000)
        body = bytearray(json.dumps(self.message()).encode())
        if dice.random() < 0.2:
            for _ in range(dice.randrange(1, 4)):
                body[dice.randrange(len(body))] = dice.randrange(256)
        return bytes(body)

    def frame(self):
        """A frame, whose length may be wrong."""
        body = self.body()
        length = (
            len(body) if self._dice.random() < 0.95 else self._dice.choice([0, 1, 1 << 20, (1 << 32) - 1])
        )
        return struct.pack(">I", length) + body

    def greeting(self):
        fields = {"type": "greeting", "handshake": 2, "protocol": self._protocol.name}
        fields["version"] = self._protocol.version
        if self._dice.random() < 0.5:
            fields["nonce"] = self._dice.randbytes(16).hex()
        if self._dice.random() < 0.1:
            fields[self._dice.choice(list(fields))] = self.value()
        body = json.dumps(fields).encode()
        return struct.pack(">I", len(body)) + body


def attack(target, fuzzer, dice):
    """One connection of a stranger, or of a holder of the token who has gone mad."""
    with contextlib.suppress(OSError):
        if dice.random() < 0.5 and (target.token is not None or dice.random() < 0.5):
            with dial(target.protocol, *target.address, "", token=target.token) as channel:
                for _ in range(dice.randrange(1, 5)):
                    send_body(channel, fuzzer.body())
            return
        with socket.create_connection(target.address, timeout=20) as stranger:
            if dice.random() < 0.2:
                stranger.sendall(dice.randbytes(dice.randrange(2000)))
            else:
                words = [fuzzer.greeting()] if dice.random() < 0.8 else []
                words += [fuzzer.frame() for _ in range(dice.randrange(5))]
                stranger.sendall(b"".join(words))
            if dice.random() < 0.3:  # Closing resets the connection.
                stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def send_body(channel, body):
    """Sends a body with the tag that belongs to it, whatever it is."""

    class Raw:
        @staticmethod
        def model_dump_json(**options):
            return body.decode("latin-1")

    with contextlib.suppress(Error):
        channel.send(Raw(), timeout=20)


SERVERS = [store, coordinator, agents, handshake, measurement, files]


@contextlib.contextmanager
def threads_must_live(monkeypatch):
    """Every exception that a thread does not handle, or that a server had to keep from ending it."""
    reports = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reports.append(args))
    yield
    assert [(report.thread.name, repr(report.exc_value)) for report in reports] == []


def fuzz(make, token, seed, count, tmp_path, monkeypatch):
    dice = random.Random(seed)
    with threads_must_live(monkeypatch), make(tmp_path, token) as target:
        fuzzer = Fuzzer(target.protocol, dice)
        for _ in range(count):
            attack(target, fuzzer, dice)
        target.serves()


@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "token"])
@pytest.mark.parametrize("make", SERVERS, ids=lambda make: make.__name__)
def test_whatever_is_said_no_thread_ends_and_the_next_peer_is_served(make, token, tmp_path, monkeypatch):
    fuzz(make, token, 1, 400, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize("token", [None, TOKEN], ids=["open", "token"])
@pytest.mark.parametrize("make", SERVERS, ids=lambda make: make.__name__)
def test_many_thousand_words_end_no_thread(make, token, seed, tmp_path, monkeypatch):
    fuzz(make, token, seed, 3000, tmp_path, monkeypatch)
