"""Fuzzes what is said over TCP: arbitrary bytes, and mutations of valid messages, as what a peer sends.

    python fuzz/handshake.py SECONDS [SEED]

Each input is read by a channel as the tools read it. Only a ConnectError may come of it. An input that fails
is written to fuzz/artifacts/handshake.
"""

import json
import random
import struct
import sys
import time
from pathlib import Path

from openmrc.collectives.coordinator import PROTOCOL as ELASTIC
from openmrc.collectives.store import PROTOCOL as STORE
from openmrc.connect import PROTOCOL
from openmrc.control import Channel, Greeting
from openmrc.errors import ConnectError
from openmrc.handshake.messages import QpEnd, Ready, Request
from openmrc.transfer.protocol import PROTOCOL as TRANSFER

QP = QpEnd(qp_num=5, psn=9, mpr=8, mpr_dest=8, max_wimm=128, max_wimm_dest=128, caps=0)
PLACE = {"addresses": [("10.0.0.1", 4791)], "ev_format": "udp", "path_mtu": 4096}
VALID = [
    Greeting(protocol="openmrc-connect", version=1).model_dump(mode="json"),
    Request.model_validate({**PLACE, "type": "request"}, strict=False).model_dump(mode="json"),
    {**PLACE, "type": "offer", "device": "mrc0", "qps": [QP.model_dump()], "buffers": []},
    {**PLACE, "type": "accept", "device": "mrc0", "qps": [QP.model_dump()], "buffers": []},
    Ready().model_dump(mode="json"),
    {"type": "data", "value": {"a": [1, None]}},
    {"type": "refused", "reason": "no"},
    {"type": "set", "number": 1, "key": "group/cards/0", "value": "AAEC"},
    {"type": "get", "number": 2, "key": "group/cards/0", "wait": 0.5},
    {"type": "join"},
    {"type": "vote", "ok": True},
    {"type": "manifest", "entries": [{"path": "a/b", "size": 3}], "if_exists": "refuse", "last": True},
    {"type": "end", "index": 0, "digest": "00"},
]
PROTOCOLS = (PROTOCOL, TRANSFER, STORE, ELASTIC)
ODD = [
    None,
    True,
    0,
    -1,
    1 << 24,
    1 << 64,
    1e308,
    "",
    "\0",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    "::1",
    "224.0.0.1",
    "999.1",
]


def mutate(value, dice):
    """A value like this one, with something changed somewhere."""
    if isinstance(value, dict) and value and dice.random() < 0.8:
        key = dice.choice(list(value))
        changed = dict(value)
        if dice.random() < 0.1:
            del changed[key]
        else:
            changed[key] = mutate(value[key], dice)
        return changed
    if isinstance(value, list) and value and dice.random() < 0.8:
        place = dice.randrange(len(value))
        return [*value[:place], mutate(value[place], dice), *value[place + 1 :]]
    return dice.choice(ODD)


def sample(dice):
    """What a peer sends: frames, most of them with the right length."""
    out = b""
    for _ in range(dice.randrange(1, 4)):
        message = dice.choice(VALID)
        for _ in range(dice.randrange(3)):
            message = mutate(message, dice)
        body = bytearray(json.dumps(message).encode())
        for _ in range(dice.choice((0, 0, 0, 1, 4))):
            body[dice.randrange(len(body))] = dice.randrange(256)
        length = len(body) if dice.random() < 0.9 else dice.getrandbits(32)
        out += struct.pack("!I", length) + body
    return out[: dice.choice((len(out), len(out), dice.randrange(len(out))))]


class Connection:
    """A TCP connection whose other end has sent these bytes and then closed it."""

    def __init__(self, data, dice):
        self._data, self._dice = data, dice

    def recv(self, most, _flags=0):
        size = min(most, self._dice.choice((1, 7, 100, most)))
        chunk, self._data = self._data[:size], self._data[size:]
        return chunk

    def setblocking(self, _on):
        pass

    def setsockopt(self, *_option):
        pass


def read(data, protocol, dice):
    channel = Channel(Connection(data, dice), "the peer", protocol.messages)
    try:
        for message in channel.arrived():
            repr(message)
    except ConnectError:
        pass
    assert len(channel._buffer) <= len(data)


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    dice = random.Random(seed)
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = sample(dice)
        try:
            read(data, dice.choice(PROTOCOLS), dice)
        except BaseException:
            place = Path(__file__).parent / "artifacts" / "handshake"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"crash-{seed}-{count}").write_bytes(data)
            print(f"seed {seed}, input {count}: {data!r}")
            raise
        count += 1
    print(f"{count} inputs, none failed")


if __name__ == "__main__":
    main()
