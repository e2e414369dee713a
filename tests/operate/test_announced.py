"""Processes that announce themselves at the agent's socket, and strangers that do worse."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric, Specification
from openmrc.observe import Observer, announce, publish
from openmrc.operate import announced as module
from openmrc.operate.agent import Agent
from openmrc.operate.announced import MOST_ANSWER, MOST_OF_A_USER, MOST_PROCESSES, Announced
from openmrc.operate.model import Reply
from openmrc.verbs import EvState
from tests.helpers.commands import OPENMRC, one_line_error, run
from tests.helpers.ends import connected, device, eventually
from tests.helpers.labs import needs_root

NOBODY = 65_534
FABRIC = Fabric(
    Specification.model_validate(
        {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    )
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where the agent listens."""
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))
    path = tmp_path / "run" / "agent.sock"
    monkeypatch.setenv("OPENMRC_AGENT", str(path))
    monkeypatch.setenv("OPENMRC_OBSERVE", "0")
    monkeypatch.setattr(announce, "AGAIN_S", 0.02)
    return path


@contextmanager
def raw(path, text=b""):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(os.fspath(path))
        connection.settimeout(20)
        connection.sendall(text)
        yield connection


def test_a_device_announces_itself_is_read_and_steered_and_told_once(place):
    with Announced(place) as agent, connected(planes=2) as (a, b), publish(a.context) as publication:
        assert eventually(lambda: agent.look([]), 20)
        [process] = agent.look([])
        assert (process.pid, process.uid, process.socket_name) == (
            os.getpid(),
            os.getuid(),
            publication.path.name,
        )
        assert process.paths.device == a.context.name
        assert process.paths.queue_pairs[0].remote
        assert agent.look([publication.path.name]) == [], "it is read at its own socket already"
        b.qp.write(b"x" * 200, a.region(bytearray(200)).remote())
        b.send_cq.take(1, 20)
        assert eventually(lambda: agent.look([]) and sum(process.received) > 200, 20)
        port, ev, _ = a.qp.ev_states()[0]

        def state():
            agent.look([])
            return next(s for p, e, s in a.qp.ev_states() if (p, e) == (port, ev))

        assert eventually(
            lambda: agent.look([]) and (process.paths.queue_pairs[0].probed or process.probe(100)), 20
        )
        process.deny(a.qp.qp_num, port, [ev])
        assert eventually(lambda: state() is EvState.DENIED, 20)
        process.deny(a.qp.qp_num, port, [ev], denied=False)
        assert eventually(lambda: state() is EvState.GOOD, 20)
        assert eventually(lambda: agent.look([]) == [process], 20)
    assert not place.exists()


def test_a_process_works_the_same_without_an_agent_and_finds_one_that_comes_later_or_again(place):
    with connected() as (a, b), publish(a.context) as publication:
        a.qp.write(b"x", b.region(bytearray(1)).remote())
        a.send_cq.take(1, 20)
        for _ in range(2):
            with Announced(place) as agent:
                assert eventually(lambda agent=agent: agent.look([]), 20)
        assert publication._thread.is_alive()


@pytest.mark.parametrize(
    ("observe", "agent", "published"), [(None, "there", True), ("0", "there", False), (None, "0", False)]
)
def test_naming_an_agent_publishes_devices_unless_that_is_turned_off(
    monkeypatch, place, observe, agent, published
):
    if agent == "0":
        monkeypatch.setenv("OPENMRC_AGENT", "0")
    if observe is None:
        monkeypatch.delenv("OPENMRC_OBSERVE")
    with device().open() as context:
        assert (context._publication is not None) == published


@pytest.mark.parametrize("wrong", ["/" + "x" * 300, "nul\0", "/etc/passwd"])
def test_a_variable_that_names_no_socket_disturbs_nothing(monkeypatch, wrong):
    monkeypatch.setattr(announce, "agent_socket", lambda: wrong)
    with device().open() as context, publish(context) as publication:
        assert eventually(lambda: publication._announced > 0, 20)
        with Observer(publication.path) as observer:
            assert observer.state().device == context.name


def test_an_agent_that_never_reads_holds_up_nothing(place):
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
        deaf.bind(os.fspath(place))
        deaf.listen()
        with connected() as (a, b), publish(a.context) as publication:
            assert eventually(lambda: publication._agent is not None, 20)
            a.qp.write(b"x", b.region(bytearray(1)).remote())
            a.send_cq.take(1, 20)
            with Observer(publication.path) as observer:
                assert observer.state().device == a.context.name


PAIR = {"qp_num": 1, "remote": [], "good": [], "bad": [], "denied": []}
PATHS = {
    "device": "d",
    "job": None,
    "time_ns": 1,
    "srv6": True,
    "addresses": [],
    "ports_up": [],
    "queue_pairs": [],
    "left_out": 0,
    "counters": [],
}
HELLO = b'{"announce":1,"number":0}\n'


def answer(**changes):
    return HELLO + json.dumps({"paths": {**PATHS, **changes}}).encode() + b"\n"


@pytest.mark.parametrize(
    "text",
    [
        b"\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"announce":2,"number":0}\n',
        b'{"announce":1,"number":-1}\n',
        HELLO + b"{}\n" * 10,
        HELLO + b"null\n",
        HELLO + b'{"state":{"stats":{"ports":[{"rx_bytes":-1}]}}}\n',
        HELLO + b'{"state":{"stats":{"ports":[{"rx_bytes":1e400}]}}}\n',
        answer(addresses=["fe80::1%lo"]),
        answer(addresses=["x" * 100]),
        answer(time_ns="soon"),
        answer(queue_pairs=[{**PAIR, "good": [[999, 1]]}]),
        answer(queue_pairs=[{**PAIR, "bad": [[0, 1]]}]),
        answer(counters=[{"port": 0}]),
    ],
)
def test_a_process_that_says_what_it_must_not_loses_its_connection(place, text):
    with Announced(place) as agent, connected() as (a, _), publish(a.context):
        assert eventually(lambda: agent.look([]), 20)
        with raw(place, text) as wrong:
            assert eventually(lambda: agent.look([]) and agent.refused["malformed"] == 1, 20), agent.refused
            while wrong.recv(4096):
                pass
        assert eventually(lambda: len(agent.look([])) == 1, 20)


def test_a_process_that_is_silent_or_floods_holds_up_no_look(place, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    with Announced(place) as agent, connected() as (a, _), publish(a.context):
        assert eventually(lambda: agent.look([]), 20)
        with raw(place), raw(place, HELLO), raw(place, HELLO + b"x") as flood:
            stopped = threading.Event()

            def send():
                with suppress(OSError):
                    while not stopped.is_set():
                        flood.sendall(b"x" * 65_536)

            sender = threading.Thread(target=send)
            sender.start()
            try:
                assert eventually(
                    lambda: agent.look([]) and agent.refused["silent"] >= 2 and agent.refused["malformed"], 60
                ), agent.refused
            finally:
                stopped.set()
                sender.join(20)
        assert eventually(lambda: len(agent.look([])) == 1, 20)
        assert all(len(process._text) <= MOST_ANSWER for process in agent._processes.values())


def test_connections_are_limited(place):
    with Announced(place) as agent:
        crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MOST_PROCESSES + 6)]
        for connection in crowd:
            connection.setblocking(False)
            try:
                connection.connect(os.fspath(place))
            except BlockingIOError:
                agent.look([])
                connection.connect(os.fspath(place))
        assert eventually(lambda: agent.look([]) or agent.refused["crowded"] == 6, 20), agent.refused
        assert len(agent._processes) == MOST_PROCESSES
        for connection in crowd:
            connection.close()


AS_NOBODY = """
import os, socket, sys, time
os.setgid(65534); os.setuid(65534)
connections = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(int(sys.argv[2]))]
if sys.argv[3] == "listen":
    connections[0].bind(sys.argv[1]); connections[0].listen()
else:
    for each in connections: each.connect(sys.argv[1])
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def as_nobody(path, count, what):
    for parent in list(path.parents)[:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    line = [sys.executable, "-c", AS_NOBODY, str(path), str(count), what]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "there\n"
        yield process
        process.stdin.close()
        process.wait(20)


@needs_root
def test_processes_of_users_that_were_not_named_are_turned_away(place):
    with Announced(place) as agent, as_nobody(place, 3, "connect"):
        assert eventually(lambda: agent.look([]) or agent.refused["stranger"] == 3, 20)
        assert agent._processes == {}
    with Announced(place, [NOBODY]) as agent, as_nobody(place, MOST_OF_A_USER + 3, "connect"):
        assert eventually(lambda: agent.look([]) or agent.refused["crowded"] == 3, 20)
        assert {process.uid for process in agent._processes.values()} == {NOBODY}


@needs_root
def test_a_process_tells_nothing_to_an_agent_of_another_user(tmp_path):
    own = tmp_path / "nobody"
    own.mkdir()
    own.chmod(0o777)
    path = own / "agent.sock"
    assert announce.connected(path) is None
    with as_nobody(path, 1, "listen"):
        assert announce.connected(path) is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as root:
        root.bind(os.fspath(tmp_path / "root.sock"))
        root.listen()
        announce.connected(tmp_path / "root.sock").close()


def test_a_socket_in_a_place_that_others_may_change_is_refused(place, tmp_path):
    place.parent.mkdir()
    place.parent.chmod(0o777)
    with pytest.raises(ArgumentError, match="only it may write to"):
        Announced(place)
    place.parent.chmod(0o755)
    place.write_text("mine")
    with pytest.raises(ArgumentError, match="no socket"):
        Announced(place)
    place.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(os.fspath(place))
    with Announced(place):
        with pytest.raises(ArgumentError, match="another agent listens"):
            Announced(place)
        assert place.exists()
    refused = run("agent", "--user", "root", "--fabric", tmp_path / "none")
    assert "--socket" in one_line_error(refused)
    with pytest.raises(ArgumentError, match="no such user"):
        module.user("nobody-of-this-name")
    assert (module.user("root"), module.user("1000")) == (0, 1000)


class Controller:
    """What an agent talks to."""

    address = "http://127.0.0.1:1"

    def __init__(self):
        self.reports = []
        self.deny = None

    def report(self, report):
        self.reports.append(report)
        return Reply(deny_version=len(self.deny or ()), deny=self.deny)

    def close(self):
        pass


def test_an_agent_reports_and_steers_a_process_that_only_announces_itself(place):
    path = FABRIC.paths("h0", "h4")[0]
    heard = []

    def act(connection):
        """A process on h0 that writes to h4 over one path."""
        received = 0
        pair = {**PAIR, "remote": FABRIC.host_addresses("h4"), "good": [[path.plane, path.ev]]}
        for line in connection.makefile("r"):
            heard.append(line.strip())
            received += 10_000
            now = time.monotonic_ns()
            used = {"port": path.plane, "ev": path.ev, "last_tx_ns": now, "address": str(path.address)}
            known = {
                **PATHS,
                "job": "llama",
                "time_ns": now,
                "addresses": FABRIC.host_addresses("h0"),
                "ports_up": [0, 1],
                "queue_pairs": [pair],
                "counters": [used],
            }
            told = {
                "paths": {"paths": known},
                "state": {"state": {"stats": {"ports": [{"rx_bytes": received}, {"rx_bytes": 0}]}}},
            }
            answer = json.dumps(told.get(line.strip(), {"denied": 1})).encode() + b"\n"
            # The test ends the connection while an answer may be under way.
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(answer)

    controller = Controller()
    running = Agent(FABRIC, ["h0"], lambda _: controller, announced=Announced(place))
    with raw(place, HELLO) as connection:
        process = threading.Thread(target=act, args=(connection,), daemon=True)
        process.start()

        def reported():
            running.turn()
            last = controller.reports[-1]
            return (4, path.ev) in last.alive and last.goodput and last.goodput[0].received[0] > 0

        # What has not changed is reported every two seconds.
        assert eventually(reported, 30), controller.reports[-1:]
        assert controller.reports[-1].goodput[0].job == "llama"
        controller.deny = [path.links[1]]
        wanted = f"deny 1 {path.plane} {path.ev}"
        assert eventually(lambda: running.turn() or wanted in heard, 30), heard
        connection.shutdown(socket.SHUT_RDWR)
        process.join(20)
    assert eventually(lambda: running.turn() or controller.reports[-1].devices == 0, 30)
    running.close()
    running.run()
    assert not place.exists()


def test_a_user_that_is_none_is_said_before_a_controller_is_waited_for(tmp_path):
    agent = [*OPENMRC, "agent", "https://127.0.0.1:1", "--socket", str(tmp_path / "agent.sock")]
    done = subprocess.run([*agent, "--user", "no such one"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "there is no such user" in done.stderr
