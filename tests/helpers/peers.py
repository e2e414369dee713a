"""Two ends that connect, in two threads, and the messages of a peer that a test plays."""

import json
import queue
import struct
import threading

from openmrc.connect import listen


def in_background(function, *arguments):
    """Runs a function in a thread; the returned list gets its result or exception."""
    outcome = []

    def run():
        try:
            outcome.append(function(*arguments))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def both(listener, serve, call):
    """Runs ``serve`` in a thread and ``call`` here; returns what each returned or raised."""
    outcome = []

    def server():
        try:
            outcome.append(serve())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=server)
    thread.start()
    try:
        mine = call()
    except Exception as error:
        mine = error
    thread.join(60)
    assert not thread.is_alive()
    return mine, outcome[0]


def turned_away(end, call, **options):
    """What a caller gets that a listener does not connect with; a stranger's reason, or the error."""
    reasons = queue.SimpleQueue()

    def serve():
        try:
            listener.accept(end.qp, timeout=60)
        except Exception as error:
            reasons.put(error)

    with listen("127.0.0.1", 0, on_refused=lambda peer, reason: reasons.put(reason), **options) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        answer = call(listener.address[1])
        found = reasons.get(timeout=60)
        listener.close()
        thread.join(60)
    assert not thread.is_alive()
    return answer, found


def message(value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack(">I", len(body)) + body


def greeting(**changes):
    return message(
        {"type": "greeting", "handshake": 2, "protocol": "openmrc-connect", "version": 1} | changes
    )


QP = {"qp_num": 5, "psn": 0, "mpr": 8, "mpr_dest": 8, "max_wimm": 1, "max_wimm_dest": 1, "caps": 7}
ADDRESSES = [["127.0.0.1", 4791]]


def request(**changes):
    located = {"addresses": ADDRESSES, "ev_format": "udp", "path_mtu": 4096}
    return message({"type": "request"} | located | changes)


def accept(**changes):
    located = {"addresses": ADDRESSES, "ev_format": "udp", "path_mtu": 4096}
    terms = located | {"device": "x", "qps": [QP], "buffers": []}
    return message({"type": "accept"} | terms | changes)
