"""What a device does, seen from another process of the same user."""

import json
import os
import socket
import subprocess
import sys
import threading
import typing

import pytest

from openmrc.cli import main
from openmrc.controller import Controller
from openmrc.errors import ArgumentError, DeviceError
from openmrc.observe import (
    ContextStats,
    NodeStats,
    Observer,
    PathStats,
    PortStats,
    devices,
    publish,
)
from openmrc.observe.publication import MOST_READERS, MOST_REQUEST
from tests.helpers.ends import connected, device, eventually


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))
    return tmp_path / "observed"


def fields(kind) -> set[str]:
    return set(typing.get_type_hints(kind))


def test_the_schema_has_every_counter_of_the_core():
    with connected() as (a, b):
        a.qp.write(b"x", b.region(bytearray(1)).remote())
        a.send_cq.take(1, 20)
        stats = a.context.stats()
        assert set(stats) == fields(ContextStats)
        assert set(stats["ports"][0]) == fields(PortStats)
        assert set(stats["node"]) == fields(NodeStats)
        assert set(a.context.path_stats()[0]) | {"address", "segment"} == fields(PathStats)


def test_another_connection_reads_counters_and_every_reader_follows_all_events():
    with connected(planes=2) as (a, b), publish(a.context) as publication:
        assert devices() == [publication.path]
        a.qp.write(b"x" * 200, b.region(bytearray(200)).remote())
        a.send_cq.take(1, 20)
        with Observer(publication.path) as observer:
            state = observer.state()
        assert (state.device, state.pid, state.ports_up) == (a.context.name, os.getpid(), [0, 1])
        assert sum(port["tx_bytes"] for port in state.stats["ports"]) > 200
        observers = [Observer(publication.path) for _ in range(3)]
        followed = [observer.follow(20) for observer in observers]
        seen: list[list] = [[] for _ in followed]
        readers = [
            threading.Thread(target=lambda events=events, into=into: into.append(next(events)))
            for events, into in zip(followed, seen, strict=True)
        ]
        for reader in readers:
            reader.start()
        assert eventually(lambda: sum(each.follows for each in publication._readers.values()) == 3)
        Controller(a.context).set_port_admin(1, up=False)
        for reader in readers:
            reader.join(20)
        assert [[(event.kind, event.fields) for event in each] for each in seen] == [
            [("port_err", {"port": 1})]
        ] * 3
        assert a.context.async_events.get(20).port == 1, "nothing was taken from the program's own reader"
        assert observers[0].path == publication.path
        for observer in observers:
            observer.close()


def test_a_device_that_is_closed_is_gone_and_who_follows_is_told():
    context = device().open()
    publication = publish(context)
    with Observer(publication.path) as observer:
        assert observer.state().device == context.name
        events = observer.follow()
        following = threading.Thread(target=lambda: list(events))
        following.start()
        assert eventually(lambda: any(each.follows for each in publication._readers.values()))
        publication.close()
        following.join(20)
        assert not following.is_alive()
    assert devices() == []
    with pytest.raises(FileNotFoundError):
        Observer(publication.path)
    context.close()


PROGRAM = """
import sys
from openmrc.verbs import Device
context = Device.loopback(int(sys.argv[1])).open()
print("open", flush=True)
sys.stdin.read()
"""


def test_the_command_shows_devices_of_other_processes_and_leftovers_of_killed_ones_go(capsys, directory):
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "201"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OPENMRC_OBSERVE": "1", "OPENMRC_JOB": "llama"},
        text=True,
    ) as process:
        assert process.stdout.readline() == "open\n"
        assert main(["devices", "--json", "--window", "10ms"]) == 0
        [shown] = json.loads(capsys.readouterr().out)
        assert (shown["pid"], shown["job"], shown["tx_bps"]) == (process.pid, "llama", 0)
        assert main(["devices", "--window", "10ms"]) == 0
        assert "llama" in capsys.readouterr().out
        process.kill()
        process.wait()
    assert len(list(directory.iterdir())) == 1
    assert devices() == []
    assert list(directory.iterdir()) == []
    assert main(["devices"]) == 0
    assert "OPENMRC_OBSERVE" in capsys.readouterr().err


def raw(path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.fspath(path))
    connection.settimeout(20)
    return connection


def send_for_ever(connection, request):
    """Until the other end no longer takes it."""
    while True:
        connection.sendall(request)


def test_readers_that_misbehave_lose_their_connection_and_nobody_else_does():
    with connected() as (a, _), publish(a.context) as publication:
        with Observer(publication.path) as honest:
            flood = raw(publication.path)
            flood.sendall(b"x" * (MOST_REQUEST + 1))
            assert flood.recv(1) == b"", "a request without an end"
            wrong = raw(publication.path)
            wrong.sendall(b"\xff\xfe\n")
            assert b"a request is a line" in wrong.recv(4096)
            deaf = raw(publication.path)
            with pytest.raises((ConnectionError, TimeoutError)):
                send_for_ever(deaf, b"state\n" * 64)
            assert honest.state().device == a.context.name
            crowd = [raw(publication.path) for _ in range(MOST_READERS + 4)]
            assert eventually(lambda: len(publication._readers) <= MOST_READERS)
            assert honest.state().device == a.context.name
            for connection in (*crowd, flood, wrong, deaf):
                connection.close()
        assert publication._thread.is_alive()


def test_a_directory_that_others_may_write_to_is_refused(directory):
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    with device().open() as context, pytest.raises(ArgumentError, match="only the owner may write"):
        publish(context)
    directory.rmdir()
    directory.symlink_to("/tmp")
    with device().open() as context, pytest.raises(ArgumentError, match="only the owner may write"):
        publish(context)


def test_a_device_opens_where_it_cannot_be_published(directory, monkeypatch):
    directory.write_text("a file")
    monkeypatch.setenv("OPENMRC_OBSERVE", "1")
    with device().open() as context:
        assert context.ports_up()


def test_a_stopped_process_does_not_hold_up_the_observer(directory):
    directory.mkdir(mode=0o700)
    path = directory / f"{os.getpid()}-999.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.bind(os.fspath(path))
        silent.listen()
        with Observer(path, patience_s=0.05) as observer, pytest.raises(DeviceError, match="no answer"):
            observer.state()


def test_a_fork_leaves_the_publication_to_the_parent():
    with device().open() as context, publish(context) as publication:
        child = os.fork()
        if child == 0:
            publication.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with Observer(publication.path) as observer:
            assert observer.state().pid == os.getpid()
