"""`serve` and `put` in company: many at once, hostile ends, tokens, a lack of descriptors."""

import contextlib
import os
import re
import resource
import socket
import struct
import subprocess
import threading
import time

import pytest
import xxhash

from openmrc import handshake
from openmrc.control import Limits as StrangerLimits
from openmrc.control import Listener, MalformedError, Token
from openmrc.errors import ConnectError
from openmrc.planes import Planes
from openmrc.printable import printable
from openmrc.transfer import protocol as p
from openmrc.transfer import session as session_module
from openmrc.transfer.manifest import Source
from openmrc.transfer.receiver import Limits, Server
from openmrc.transfer.ring import ReceivingRing, SendingRing
from openmrc.transfer.sender import Sender
from openmrc.transfer.store import Store
from tests.helpers.commands import OPENMRC, command, one_line_error, run
from tests.helpers.peers import greeting, message
from tests.helpers.senders import Rogue

SECRET = "0123456789abcdef0123456789abcdef"
ONE = Planes(count=1)


@pytest.fixture
def inbox(tmp_path):
    directory = tmp_path / "inbox"
    directory.mkdir()
    return directory


def everything_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def digest(data):
    return xxhash.xxh3_128(data).hexdigest()


@contextlib.contextmanager
def server(inbox, **options):
    """A server in this process, and the events that it reported."""
    events = []
    with Store(inbox, sync=False) as store:
        it = Server(store, host="127.0.0.1", port=0, observer=events.append, **options)
        thread = threading.Thread(target=it.serve)
        thread.start()
        try:
            yield it, events
        finally:
            it.close()
            thread.join(30)
            assert not thread.is_alive()


def send(port, tmp_path, name, data=b"data", **options):
    """Sends a file with a name; its result."""
    file = tmp_path / f"source-{abs(hash(name))}"
    file.write_bytes(data)
    source = Source(file, p.Entry(path=name, size=len(data)))
    with Sender("127.0.0.1", port, planes=ONE, **options) as sender:
        return sender.send([source]).files[0]


@contextlib.contextmanager
def rogue(port):
    it = Rogue(port)
    try:
        yield it
    finally:
        it.close()


def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("who", ["serve", "put"])
def test_names_are_the_same_bytes_in_every_locale(tmp_path, inbox, who):
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environments = {"serve": dict(os.environ), "put": dict(os.environ), who: plain}
    (tmp_path / "gr\u00fc\u00df dich").write_bytes(b"data")
    with command("serve", inbox, "--port", 0, "--no-sync", "--json", env=environments["serve"]) as receiver:
        to = f"127.0.0.1:{receiver.event()['port']}"
        result = run("put", tmp_path / "gr\u00fc\u00df dich", to, env=environments["put"])
        assert result.returncode == 0, result.stderr
    assert [bytes(path.relative_to(inbox)) for path in inbox.iterdir()] == ["gr\u00fc\u00df dich".encode()]


# --- many at once -------------------------------------------------------------------------------------------

MANY = """
import sys, threading
from pathlib import Path
from openmrc.planes import Planes
from openmrc.transfer import protocol as p
from openmrc.transfer.manifest import Source
from openmrc.transfer.sender import Sender
port, count, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
together, outcomes = threading.Barrier(count), [None] * count
def put(i):
    file = directory / f"f{i}"
    file.write_bytes(bytes([i]) * 300_000)
    together.wait()
    try:
        with Sender("127.0.0.1", port, planes=Planes(count=1)) as sender:
            report = sender.send([Source(file, p.Entry(path=file.name, size=300_000))])
            outcomes[i] = report.files[0].status
    except Exception as error:
        outcomes[i] = str(error)
threads = [threading.Thread(target=put, args=[i]) for i in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("\\n".join(outcomes))
"""


def many_at_once(port, count, directory):
    directory.mkdir()
    script = [OPENMRC[0], "-c", MANY, str(port), str(count), str(directory)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def limited(*arguments, descriptors):
    """A command that may have only so many descriptors."""
    shell = ["prlimit", f"--nofile={descriptors}:{descriptors}", *OPENMRC, *map(str, arguments)]
    return subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("descriptors", [1024])
def test_64_senders_at_once_all_end_well_within_the_usual_number_of_descriptors(tmp_path, inbox, descriptors):
    flags = ["--port", 0, "--no-sync", "--json"]
    process = limited("serve", inbox, *flags, descriptors=descriptors)
    try:
        port = int(re.search(r'"port": (\d+)', process.stdout.readline())[1])
        assert many_at_once(port, 64, tmp_path / "files") == ["stored"] * 64
    finally:
        process.kill()
        process.communicate()
    assert everything_below(inbox) == sorted(f"f{i}" for i in range(64))
    assert all((inbox / f"f{i}").read_bytes() == bytes([i]) * 300_000 for i in range(64))


@pytest.mark.long
def test_64_commands_at_once_all_end_well(tmp_path, inbox):
    file = tmp_path / "file"
    file.write_bytes(os.urandom(3_000_000))
    with command("serve", inbox, "--port", 0, "--no-sync", "--json") as receiver:
        address = f"127.0.0.1:{receiver.event()['port']}"
        links = [tmp_path / f"f{i}" for i in range(64)]
        for link in links:
            link.symlink_to(file)
        puts = [
            subprocess.Popen([*OPENMRC, "put", str(link), address], stderr=subprocess.PIPE) for link in links
        ]
        assert [(put.communicate(timeout=300)[1], put.returncode) for put in puts] == [(b"", 0)] * 64
    assert {path.read_bytes() == file.read_bytes() for path in inbox.iterdir()} == {True}


def test_running_out_of_descriptors_refuses_some_with_a_clear_error_and_the_others_finish(tmp_path, inbox):
    with command("serve", inbox, "--port", 0, "--no-sync", "--json") as receiver:
        port, pid = receiver.event()["port"], receiver.process.pid
        assert send(port, tmp_path, "before").status == "stored"
        # Enough for a few senders beyond what the receiver has open by now.
        enough = len(os.listdir(f"/proc/{pid}/fd")) + 60  # noqa: PTH208
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (enough, enough))
        outcomes = many_at_once(port, 48, tmp_path / "files")
        # The receiver goes on.
        eventually(lambda: len(os.listdir(f"/proc/{pid}/fd")) < enough - 10)  # noqa: PTH208
        assert send(port, tmp_path, "after").status == "stored"
    stored = [f"f{i}" for i, outcome in enumerate(outcomes) if outcome == "stored"]
    refused = [outcome for outcome in outcomes if outcome != "stored"]
    assert stored
    assert refused
    assert [text for text in refused if "refuses: no file descriptors are left" not in text] == []
    assert everything_below(inbox) == sorted([*stored, "before", "after"])


def test_one_address_gets_so_many_transfers_and_all_together_so_many(tmp_path, inbox):
    with server(inbox, limits=Limits(senders=2, per_address=1)) as (it, _):
        with rogue(it.port):
            refused = "1 transfers from 127.0.0.1 are running, which is the limit for one address"
            with pytest.raises(ConnectError, match=refused):
                send(it.port, tmp_path, "file")
        eventually(lambda: not it._sessions)
        assert send(it.port, tmp_path, "file").status == "stored"
    with (
        server(inbox, limits=Limits(senders=1, per_address=9)) as (it, _),
        rogue(it.port),
        pytest.raises(ConnectError, match="1 transfers are running, which is the limit"),
    ):
        send(it.port, tmp_path, "other")


def test_silent_strangers_do_not_keep_a_sender_out(tmp_path, inbox):
    limits = Limits(strangers=StrangerLimits(strangers=3, greeting=60.0))
    with server(inbox, limits=limits) as (it, events), contextlib.ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", it.port), timeout=20))
            for _ in range(6)
        ]
        assert send(it.port, tmp_path, "file").status == "stored"
        # The oldest were ended long before the deadline.
        assert [stranger.recv(1) for stranger in strangers[:3]] == [b""] * 3
        eventually(lambda: sum(event.kind == "broken" for event in events) >= 3)


def test_bytes_that_drip_are_ended_while_another_is_served(tmp_path, inbox):
    with (
        server(inbox, limits=Limits(strangers=StrangerLimits(greeting=1.0))) as (it, events),
        socket.create_connection(("127.0.0.1", it.port), timeout=20) as stranger,
    ):
        stranger.sendall(struct.pack(">I", 500))
        begun = time.monotonic()
        assert send(it.port, tmp_path, "file").status == "stored"
        with contextlib.suppress(OSError):
            while time.monotonic() - begun < 30:
                stranger.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - begun < 15
        assert any("did not answer within" in (event.reason or "") for event in events)


# --- senders that do not keep to the rules ------------------------------------------------------------------


def test_a_sender_that_does_nothing_is_given_up(inbox):
    with server(inbox, idle_timeout=0.5) as (it, events), rogue(it.port) as sender:
        sender.announce(p.Entry(path="file", size=100))
        sender.block(b"x" * 50, 0)
        with pytest.raises(ConnectError, match="refuses: no data came for"):
            sender.channel.expect(p.Stored, 20)
        eventually(lambda: [event.kind for event in events][-2:] == ["failed", "broken"])
    assert everything_below(inbox) == []


@pytest.mark.parametrize("pause", [0.3, 0.05, 0.0])
def test_a_sender_that_only_says_that_it_is_busy_is_given_up_too(inbox, monkeypatch, pause):
    monkeypatch.setattr(p, "BUSY_LIMIT", 1.0)
    with server(inbox, idle_timeout=0.4) as (it, _), rogue(it.port) as sender:
        sender.announce(p.Entry(path="file", size=100))
        begun = time.monotonic()
        with contextlib.suppress(ConnectError):
            while time.monotonic() - begun < 20:
                sender.channel.send(p.Busy())
                sender.channel.check()
                time.sleep(pause)
        assert 0.8 < time.monotonic() - begun < 15


def test_a_sender_that_announces_nothing_is_given_up(inbox):
    with server(inbox, idle_timeout=0.3) as (it, events), rogue(it.port):
        eventually(lambda: any("did not answer within 0.3 s" in (event.reason or "") for event in events))


def test_files_that_are_begun_and_never_ended_do_not_pile_up(inbox):
    with server(inbox, idle_timeout=1.0) as (it, events), rogue(it.port) as sender:
        sender.announce(*(p.Entry(path=f"f{i}", size=2) for i in range(40)))
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        most = 0
        with contextlib.suppress(ConnectError):
            for i in range(40):
                while sender.ring.free() is None:
                    sender.ring.poll()
                    sender.channel.check()
                    time.sleep(0.01)
                sender.block(b"x", i)
                most = max(most, len(os.listdir("/proc/self/fd")) - before)  # noqa: PTH208
        eventually(lambda: any("without ending any" in (event.reason or "") for event in events))
        assert most <= 2 * 16 + 2
    assert everything_below(inbox) == []


@pytest.mark.parametrize("token", [None, Token(SECRET)])
def test_a_long_list_of_files_is_bounded_and_longer_with_the_token(inbox, monkeypatch, token):
    monkeypatch.setattr(session_module, "MANIFEST_LIMIT", 100_000)
    monkeypatch.setattr(session_module, "TRUSTED_MANIFEST_LIMIT", 300_000)
    entries = [p.Entry(path=f"{'x' * 100}{i}", directory=True) for i in range(2500)]
    sources = [Source(inbox, entry) for entry in entries]
    with (
        server(inbox, token=token) as (it, _),
        Sender("127.0.0.1", it.port, planes=ONE, token=token) as sender,
        pytest.raises(ConnectError) as caught,
    ):
        sender.send(sources)
    count, who = (1000, " without a token") if token is None else (3000, "")
    assert f"has more than 0 MiB, or {count} files, which is the limit{who}" in str(caught.value)


def test_short_names_do_not_make_a_list_of_files_larger_than_the_memory_for_it(inbox, monkeypatch):
    monkeypatch.setattr(session_module, "MANIFEST_LIMIT", 200_000)
    for count in (2000, 2001):
        sources = [Source(inbox, p.Entry(path=f"{i:x}", directory=True)) for i in range(count)]
        with server(inbox) as (it, _), Sender("127.0.0.1", it.port, planes=ONE) as sender:
            if count == 2000:
                assert sender.send(sources).complete
            else:
                with pytest.raises(ConnectError, match="or 2000 files, which is the limit without a token"):
                    sender.send(sources)


@pytest.mark.parametrize(
    ("addresses", "reason"),
    [([["203.0.113.9", 4791]], "offers the address 203.0.113.9"), ([["::1", 4791]], "IPv6 ports")],
)
def test_a_refusal_tells_nothing_about_routes(inbox, addresses, reason):
    request = {"type": "request", "addresses": addresses, "ev_format": "udp", "path_mtu": 4096}
    with server(inbox) as (it, _), socket.create_connection(("127.0.0.1", it.port), timeout=20) as stranger:
        stranger.sendall(greeting(protocol="openmrc-transfer", version=p.PROTOCOL.version) + message(request))
        stranger.shutdown(socket.SHUT_WR)
        told = stranger.makefile("rb").read().decode(errors="replace")
    assert reason in told
    assert "route" not in told


def test_a_list_of_files_travels_in_parts(tmp_path, inbox):
    for i in range(2500):
        (tmp_path / "tree" / f"d{i % 7}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / f"d{i % 7}" / f"e{i}").mkdir()
    with command("serve", inbox, "--port", 0, "--no-sync", "--json") as receiver:
        result = run("put", tmp_path / "tree", f"127.0.0.1:{receiver.event()['port']}")
    assert result.returncode == 0, result.stderr
    assert len(everything_below(inbox)) == 1 + 7 + 2500


@pytest.mark.parametrize(
    "sent",
    [
        {"type": "manifest", "entries": [{"path": "x"}] * (p.PART_ENTRIES + 1)},
        {"type": "manifest", "entries": [{"path": "x", "mode": 0o4755}]},
        {"type": "manifest", "entries": [{"path": "x", "size": -1}]},
        {"type": "manifest", "entries": [{"path": "x" * 5000}]},
        {"type": "end", "index": 0, "digest": "x" * 65},
        {"type": "bye"},
        {"type": "stored", "index": 0, "digest": ""},
        b"\0",
        None,
    ],
)
def test_what_is_no_list_of_files_ends_the_session(tmp_path, inbox, sent):
    with server(inbox) as (it, events), rogue(it.port) as sender:
        raw = message(sent) if sent is not None else struct.pack(">I", p.MAX_MESSAGE + 1)
        sender.channel._socket.sendall(raw)
        eventually(lambda: any(event.kind == "broken" for event in events))
        assert send(it.port, tmp_path, "file").status == "stored"
    assert everything_below(inbox) == ["file"]


def test_a_sender_killed_in_the_middle_leaves_nothing_and_its_place_to_others(tmp_path, inbox):
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    flags = ["--port", 0, "--no-sync", "--json", "--max-senders", 1]
    with command("serve", inbox, *flags) as receiver:
        address = f"127.0.0.1:{receiver.event()['port']}"
        with command("put", huge, address, "--impair", "delay=100%,by=20ms") as put:
            receiver.events_until("connected")
            time.sleep(0.3)
            put.kill()
        receiver.events_until("broken")
        (tmp_path / "next").write_text("next")
        assert run("put", tmp_path / "next", address).returncode == 0
    assert everything_below(inbox) == ["next"]


# --- receivers that do not keep to the rules ----------------------------------------------------------------


@contextlib.contextmanager
def rogue_receiver(behave):
    """A receiver that shakes hands and then does what the test wants."""

    def body():
        with contextlib.suppress(ConnectError), listener.accept(20) as channel:
            context = Planes(count=1).open("127.0.0.1", "127.0.0.1")
            with context, ReceivingRing(context, "sender", blocks=2) as ring:
                with handshake.answering(channel) as answering:
                    answering.offer(ring.end())
                behave(channel, ring)

    with Listener(p.PROTOCOL, "127.0.0.1", 0) as listener:
        thread = threading.Thread(target=body)
        thread.start()
        yield listener.address[1]
        thread.join(30)


def accept_all(channel):
    part = channel.expect(p.Manifest, 20)
    channel.send(p.Plan(verdicts=[p.Verdict()] * len(part.entries)))


def stay(channel):
    """Listens, and says nothing."""
    while True:
        channel.receive(30)


def test_a_receiver_that_does_nothing_is_given_up(tmp_path):
    def silent(channel, ring):
        accept_all(channel)
        stay(channel)

    with (
        rogue_receiver(silent) as port,
        pytest.raises(ConnectError, match="was given up: it did nothing for"),
    ):
        send(port, tmp_path, "file", bytes(100), timeout=0.5)


def test_a_receiver_that_does_not_answer_the_list_is_given_up(tmp_path):
    def silent(channel, ring):
        stay(channel)

    with rogue_receiver(silent) as port, pytest.raises(ConnectError, match=r"did not answer within 0\.5 s"):
        send(port, tmp_path, "file", timeout=0.5)


@pytest.mark.parametrize("said", [p.Stored(index=7, digest=""), p.Failed(index=7, reason="x"), p.Bye()])
def test_answers_about_files_that_do_not_exist_end_the_transfer(tmp_path, said):
    def lie(channel, ring):
        accept_all(channel)
        channel.send(said)
        stay(channel)

    with rogue_receiver(lie) as port, pytest.raises(ConnectError, match="not allowed here"):
        send(port, tmp_path, "file", timeout=5)


@pytest.mark.parametrize(
    ("blocks", "block_bytes"), [(1 << 14, 1 << 20), (1, 1 << 30), (65, 1 << 20), (0, 4096), (1, 1)]
)
def test_a_ring_of_more_than_64_mib_is_refused_before_any_memory_is_taken(blocks, block_bytes):
    class Offer:
        data = {"blocks": blocks, "block_bytes": block_bytes}  # noqa: RUF012
        buffers = ()

    with pytest.raises(MalformedError, match="malformed"):
        SendingRing(None, "receiver", Offer)
    assert p.RingShape(blocks=64, block_bytes=1 << 20)


def test_rings_become_smaller_with_more_senders():
    with Planes(count=1).open("127.0.0.1", "127.0.0.1") as context:
        sizes = []
        for senders in (1, 8, 9, 16, 17, 64, 256):
            with ReceivingRing.for_sender(context, "sender", senders) as ring:
                sizes.append(ring.blocks)
    assert sizes == [16, 16, 8, 8, 4, 2, 2]


# --- names --------------------------------------------------------------------------------------------------

NASTY = "a\nb\x1b[31mred\x07\u202egnp.exe\t\\"


def test_names_with_control_characters_are_escaped_wherever_they_are_shown(tmp_path, inbox):
    file = tmp_path / NASTY
    file.write_text("x")
    with command("serve", inbox, "--port", 0, "--bind", "127.0.0.1", "--no-sync") as receiver:
        eventually(lambda: receiver.errors)
        address = f"127.0.0.1:{re.search('port ([0-9]+)', receiver.errors[0])[1]}"
        stored = run("put", file, address)
        again = run("put", file, address)
        lines = [receiver.line(), again.stdout, stored.stdout.splitlines()[0]]
        error = one_line_error(again)
    assert stored.returncode == 0
    assert again.returncode == 1
    assert (inbox / NASTY).read_text() == "x"
    for text in (*lines, error):
        assert r"a\nb\x1b[31mred\x07\u202egnp.exe\t\\" in text
        assert text.strip().isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 名前 a\\b", "plain ü 名前 a\\b"),
        ("\udce4", r"\udce4"),
        ("\x9b\\", r"\x9b\\"),
        ("\r\0", r"\r\x00"),
    ],
)
def test_printable_escapes_what_is_not_and_leaves_the_rest(text, shown):
    assert printable(text) == shown


# --- tokens and where to listen -----------------------------------------------------------------------------


def test_serve_and_put_with_a_token_from_a_file_and_from_the_environment(tmp_path, inbox):
    token, wrong, open_to_all = tmp_path / "token", tmp_path / "wrong", tmp_path / "open"
    for path, secret, mode in (
        (token, SECRET, 0o600),
        (wrong, SECRET[::-1], 0o600),
        (open_to_all, SECRET, 0o644),
    ):
        path.write_text(f"{secret}\n")
        path.chmod(mode)
    file = tmp_path / "file"
    file.write_text("x")
    environment = {**os.environ, "OPENMRC_TOKEN": SECRET}
    with command(
        "serve", inbox, "--port", 0, "--no-sync", "--bind", "0.0.0.0", "--token-file", token
    ) as receiver:
        eventually(lambda: receiver.errors)
        address = f"127.0.0.1:{re.search('port ([0-9]+)', receiver.errors[0])[1]}"
        outcomes = [
            (run("put", file, address), 1, "asks for a token"),
            (run("put", file, address, "--token-file", wrong), 1, "different tokens"),
            (run("put", file, address, "--token-file", open_to_all), 2, "every user"),
        ]
        assert everything_below(inbox) == []
        good = run("put", file, address, env=environment)
    for result, code, says in outcomes:
        assert result.returncode == code
        assert says in one_line_error(result)
    assert good.returncode == 0, good.stderr
    assert SECRET not in "".join(receiver.errors) + good.stdout
    assert everything_below(inbox) == ["file"]


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_listening_where_other_machines_can_connect_asks_for_a_token(tmp_path, inbox, address):
    result = run("serve", inbox, "--port", 0, "--bind", address)
    assert result.returncode == 2
    assert "name a token" in one_line_error(result)
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    both = run("serve", inbox, "--bind", address, "--insecure", "--token-file", tmp_path / "token")
    assert "--insecure serves without a token" in one_line_error(both)


def test_by_default_only_this_machine_can_connect(inbox):
    with command("serve", inbox, "--port", 0, "--json") as receiver:
        event = receiver.event()
        assert event["address"] == "127.0.0.1"
        # 127.0.0.2 is served by a listener on all addresses, not by one on 127.0.0.1.
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", event["port"])):
            pass
    with command("serve", inbox, "--port", 0, "--json", "--bind", "0.0.0.0", "--insecure") as receiver:
        socket.create_connection(("127.0.0.2", receiver.event()["port"])).close()


def test_a_stranger_does_not_end_a_server_that_serves_one_sender(tmp_path, inbox):
    file = tmp_path / "file"
    file.write_text("x")
    with command("serve", inbox, "--port", 0, "--once", "--no-sync", "--json") as receiver:
        port = receiver.event()["port"]
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(greeting(protocol="smtp"))
        assert run("put", file, f"127.0.0.1:{port}").returncode == 0
        assert receiver.wait() == 0


def test_the_soft_limit_of_descriptors_is_raised(inbox):
    with command("serve", inbox, "--port", 0, "--json") as receiver:
        receiver.event()
        soft, hard = resource.prlimit(receiver.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard


# --- senders that hold what others need ---------------------------------------------------------------------


class Hog(Rogue):
    """A sender that begins many files and ends none."""

    def hold(self, name, count):
        self.announce(*(p.Entry(path=f"{name}{i}", size=2) for i in range(count)))
        for i in range(count):
            while self.ring.free() is None:
                self.ring.poll()
                time.sleep(0.01)
            self.block(b"x", i)


def test_senders_that_hold_files_open_keep_no_other_waiting(tmp_path, inbox):
    with (
        command("serve", inbox, "--port", 0, "--no-sync", "--json") as receiver,
        contextlib.ExitStack() as stack,
    ):
        port, pid = receiver.event()["port"], receiver.process.pid
        stack.enter_context(rogue(port))  # The device is open now.
        open_now = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now + 130, open_now + 130))
        honest = stack.enter_context(Sender("127.0.0.1", port, planes=ONE))
        hogs = [Hog(port) for _ in range(5)]
        for hog in hogs:
            stack.callback(hog.close)
        for number, hog in enumerate(hogs):
            hog.hold(f"hog{number}-", 16)
        # Until they have no more descriptors, or as many as they get.
        time.sleep(1)
        file = tmp_path / "file"
        file.write_bytes(b"data")
        entries = [p.Entry(path=f"honest{i}", size=4) for i in range(30)]
        report = honest.send([Source(file, entry) for entry in entries])
        assert report.complete
        # Nobody had to be given up before.
        for hog in hogs:
            hog.channel.check()


def test_rings_become_smaller_and_are_refused_when_their_memory_is_used_up(tmp_path, inbox):
    limits = Limits(memory=64 << 20, memory_per_address=48 << 20)
    with server(inbox, limits=limits) as (it, _), rogue(it.port) as first, rogue(it.port) as second:
        assert (first.ring.blocks, second.ring.blocks) == (16, 4)
        with rogue(it.port) as third:
            assert third.ring.blocks == 2
            with pytest.raises(ConnectError, match="a ring needs 5242880 bytes of memory"):
                send(it.port, tmp_path, "file")
        eventually(lambda: len(it._sessions) == 2)
        assert send(it.port, tmp_path, "file").status == "stored"


def test_a_list_of_files_is_refused_when_its_memory_is_used_up(inbox):
    limits = Limits(memory=64 << 20, memory_per_address=33 << 20)
    entries = [p.Entry(path=f"{'x' * 100}{i}", directory=True) for i in range(2500)]
    with server(inbox, limits=limits) as (it, _), Sender("127.0.0.1", it.port, planes=ONE) as sender:
        with pytest.raises(ConnectError, match=r"refuses: .* bytes of memory, of 34603008 that peers"):
            sender.send([Source(inbox, entry) for entry in entries])
        eventually(lambda: not it._sessions)
    assert everything_below(inbox) == []
