"""The metrics of an agent, and who connects and asks for none."""

import socket
import threading
import urllib.request

import pytest

from openmrc.operate.exporter import MOST_CONNECTIONS, Exporter


@pytest.fixture
def exporter():
    with Exporter("127.0.0.1", 0, lambda: b"up 1\n", "text/plain") as made:
        yield made


def metrics(exporter):
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=20) as answer:
        return answer.read()


def test_connections_that_say_nothing_keep_nobody_waiting(exporter):
    address = ("127.0.0.1", exporter.port)
    silent = [socket.create_connection(address) for _ in range(MOST_CONNECTIONS // 2)]
    for each in silent:
        each.sendall(b"GET /metr")
    assert metrics(exporter) == b"up 1\n"
    for each in silent:
        # They have as long as they had: nobody was served after them.
        each.setblocking(False)
        with pytest.raises(BlockingIOError):
            each.recv(1)
        each.close()


def test_one_connection_too_many_ends_the_oldest(exporter):
    address = ("127.0.0.1", exporter.port)
    silent = [socket.create_connection(address) for _ in range(MOST_CONNECTIONS + 1)]
    silent[0].settimeout(20)
    assert silent[0].recv(1) == b""
    assert metrics(exporter) == b"up 1\n"
    for each in silent:
        each.close()


def test_closing_waits_for_no_stranger(exporter):
    with socket.create_connection(("127.0.0.1", exporter.port)):
        closing = threading.Thread(target=exporter.close)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
