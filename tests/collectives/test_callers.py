"""What strangers do to the connections of ranks: nothing."""

import contextlib
import errno
import queue
import socket
import time

import pytest

from openmrc.collectives import callers, lifelines
from openmrc.collectives.lifelines import Lifelines, listen

SECRET = bytes(range(32))


class Told:
    """What a communicator of two ranks learns."""

    members = (0, 1)

    def __init__(self):
        self.ended = queue.SimpleQueue()

    def peer_ended(self, rank, reason):
        self.ended.put((rank, reason))


@pytest.fixture(autouse=True)
def goodbyes_are_told_soon(monkeypatch):
    monkeypatch.setitem(lifelines._WAIT, lifelines.Ending.GOODBYE, 0.1)


@contextlib.contextmanager
def first_rank(listeners):
    """The address of rank 0, and what its communicator is told."""
    told = Told()
    with Lifelines(0, (0, 1), listeners, SECRET, ("a", "b")) as made:
        made.watch(told)
        yield listeners[0].getsockname()[:2], told


@pytest.fixture
def first():
    with first_rank(listen("127.0.0.1", [])) as made:
        yield made


def assert_a_rank_comes_and_goes(address, told):
    """Rank 1 joins, hears nothing of an end, and its goodbye is heard."""
    own = Told()
    rank = Lifelines.join(1, (0, 1), [address], SECRET, ("a", "b"))
    with rank:
        rank.watch(own)
        time.sleep(0.5)
    assert told.ended.get(timeout=20) == (1, "it has closed its communicator")
    assert own.ended.empty()


def is_ended(connection):
    connection.settimeout(20)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_rank_is_admitted_however_many_strangers_are_silent(first):
    address, told = first
    strangers = [socket.create_connection(address) for _ in range(callers.STRANGERS + 50)]
    assert is_ended(strangers[0]), "the oldest makes room"
    assert_a_rank_comes_and_goes(address, told)
    for each in strangers:
        each.close()


def test_who_does_not_show_the_secret_is_ended(first, monkeypatch):
    address, told = first
    for said in (callers.HELLO.pack(bytes(32), 1), callers.HELLO.pack(SECRET, 2), b"\xff" * 4096):
        with socket.create_connection(address) as stranger:
            stranger.sendall(said)
            assert is_ended(stranger)
    monkeypatch.setattr(callers, "GREETING", 0.2)
    with socket.create_connection(address) as silent:
        assert is_ended(silent)
    assert_a_rank_comes_and_goes(address, told)
    assert told.ended.empty()


class Poor(socket.socket):
    """A listening socket that has no descriptors for a while."""

    missing = 3
    tried = 0

    def accept(self):
        self.tried += 1
        if self.tried <= self.missing:
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


def test_a_shortage_of_descriptors_is_waited_for():
    listener = Poor()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with first_rank([listener]) as (address, told):
        assert_a_rank_comes_and_goes(address, told)
    assert listener.tried < 10
