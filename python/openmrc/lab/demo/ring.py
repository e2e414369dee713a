"""A ring of writes over MRC: a queue pair from each host to the next, at a steady pace, each checked."""

import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from openmrc.controller import Controller, EvMode, ProfileState
from openmrc.errors import Error
from openmrc.fabric import Path
from openmrc.handshake import End, Options
from openmrc.lab import Lab, entered
from openmrc.lab.demo.scene import RING, pairs
from openmrc.lab.demo.sender import Sender, catch_up
from openmrc.lab.demo.trace import Flow
from openmrc.verbs import (
    AccessFlags,
    Context,
    MemoryRegion,
    QpCap,
    QueuePair,
    RemoteBuffer,
    SendWR,
)
from openmrc.wire import EvFormat

PATH_MTU = 2048
"""Payload bytes per packet: small, so that every path is used every few milliseconds at a modest rate."""

PACKETS = 4
"""Of a write."""

SLOTS = 256
"""Writes under way, at most: what is posted in half a second."""

_PIECE = PATH_MTU * PACKETS
_STAMP = struct.Struct("<QQ")
_BASE_RTT_US = 200.0
"""What a packet and its answer take over six links of this kind, with nothing else going on."""
_PATIENCE = 30.0


@dataclass
class _Way:
    """From one host to the next."""

    src: str
    dst: str
    qp: QueuePair
    peer: QueuePair
    source: MemoryRegion
    out: memoryview
    inbox: memoryview
    remote: RemoteBuffer
    posted: int = 0
    completed: int = 0
    arrived: int = 0
    due: float = 0.0
    under_way: deque[tuple[int, bytes]] = field(default_factory=deque)
    """When each was posted, and its digest."""


_ACK_DELAY_US = 200.0
"""One SACK for a write of four packets, not one for each."""


class Ring(Sender):
    """Writes until it is stopped, and checks what arrives.

    Args:
        lab: Where.
        rate_bps: What each host offers.
        hosts: Each writes to the next, and the last to the first.
        srv6: Whether NICs build SRv6 frames themselves; otherwise hosts' kernels put the outer header on.
        options: Other fields of the hosts' devices.
    """

    def __init__(
        self, lab: Lab, rate_bps: float, hosts: Sequence[str] = RING, *, srv6: bool = False, **options: Any
    ) -> None:
        self._lab = lab
        self._interval = _PIECE * 8 / rate_bps
        super().__init__("openmrc-lab-ring", [Flow("mrc", src, dst, rate_bps) for src, dst in pairs(hosts)])
        self.contexts: dict[str, Context] = {}
        self.ways: list[_Way] = []
        options = {"ev_burst": 1, "base_rtt_us": _BASE_RTT_US, "ack_delay_us": _ACK_DELAY_US} | options
        self._srv6 = srv6
        if srv6:
            options["ev_format"] = EvFormat.SRV6
        try:
            for number, host in enumerate(hosts):
                with entered(lab.namespace(host)):
                    device = lab.device(host, seed=number, **options)
                    self.contexts[host] = self._stack.enter_context(device.open())
            for src, dst in pairs(hosts):
                self.ways.append(self._connect(src, dst))
        except BaseException:
            self._stack.close()
            raise

    def _connect(self, src: str, dst: str) -> _Way:
        one, two = self.contexts[src], self.contexts[dst]
        sending, receiving = one.alloc_pd(), two.alloc_pd()
        out, inbox = bytearray(os.urandom(_PIECE * SLOTS)), bytearray(_PIECE * SLOTS)
        source = sending.register(out, AccessFlags.NONE)
        target = receiving.register(inbox)
        mine = sending.create_qp(one.create_cq(), cap=QpCap(max_send_wr=2 * SLOTS))
        theirs = receiving.create_qp(two.create_cq(), cap=QpCap(max_recv_wr=4 * SLOTS))
        here = End([mine], options=self._options(one))
        there = End([theirs], options=self._options(two), receives=2 * SLOTS)
        here.connect(there.offer())
        there.connect(here.accept())
        remote = RemoteBuffer(target.addr, target.length, target.rkey)
        return _Way(src, dst, mine, theirs, source, memoryview(out), memoryview(inbox), remote)

    def _options(self, context: Context) -> Options:
        # With SRv6 the context itself makes a profile of all paths to each peer.
        return Options(path_mtu=PATH_MTU, ev_profile_id=None if self._srv6 else _every_path(context))

    def path(self, src: str, dst: str, port: int, ev: int) -> Path:
        """The path that a host's entropy value on a port means."""
        if self._srv6:
            return self._lab.fabric.path_of(ev, src, dst)
        return self._lab.path(src, dst, port, ev)

    def _stagger(self, now: float) -> None:
        for number, way in enumerate(self.ways):
            # Hosts do not march in step.
            way.due = now + self._interval * number / len(self.ways)

    def _awaits(self, waited_s: float) -> bool:
        if not any(way.under_way for way in self.ways):
            return False
        if waited_s > _PATIENCE:
            raise Error(f"writes did not arrive within {_PATIENCE:g} s of the end")
        return True

    def _tick(self, *, posting: bool) -> None:
        for number, way in enumerate(self.ways):
            if posting:
                self._post(way)
            self._take(number, way)
        self.half.time_ns.append(time.monotonic_ns())
        self.half.received.append(tuple(way.arrived * _PIECE for way in self.ways))

    def _post(self, way: _Way) -> None:
        now = time.monotonic()
        way.due = catch_up(way.due, now)
        while way.due <= now:
            if way.posted - min(way.arrived, way.completed) >= SLOTS:
                return
            begin = way.posted % SLOTS * _PIECE
            piece = way.out[begin : begin + _PIECE]
            for packet in range(PACKETS):
                # No packet is like another: one that is missing would be seen in the digest.
                _STAMP.pack_into(piece, packet * PATH_MTU, way.posted, packet)
            way.under_way.append((time.monotonic_ns(), xxhash.xxh3_64_digest(piece)))
            way.qp.post_send(
                SendWR(
                    sg_list=(way.source.sge(begin, _PIECE),),
                    remote_addr=way.remote.addr + begin,
                    rkey=way.remote.rkey,
                    imm_data=way.posted & 0xFFFF_FFFF,
                )
            )
            way.posted += 1
            way.due += self._interval

    def _take(self, number: int, way: _Way) -> None:
        arrived = way.peer.recv_cq.poll(SLOTS)
        for completion in arrived:
            if not completion.ok:
                raise Error(f"{way.dst}: {completion.status.name} receiving from {way.src}")
            begin = way.arrived % SLOTS * _PIECE
            posted_ns, digest = way.under_way.popleft()
            right = completion.imm_data == way.arrived & 0xFFFF_FFFF
            right &= xxhash.xxh3_64_digest(way.inbox[begin : begin + _PIECE]) == digest
            self.half.wrong += not right
            self.half.pieces += 1
            way.arrived += 1
            waits = self.half.waits
            waits.flow.append(number)
            waits.posted_ns.append(posted_ns)
            waits.wait_ns.append(time.monotonic_ns() - posted_ns)
        if arrived:
            way.peer.post_recv(len(arrived))
        for completion in way.qp.send_cq.poll(SLOTS):
            if not completion.ok:
                raise Error(f"{way.src}: {completion.status.name} writing to {way.dst}")
            way.completed += 1


def _every_path(context: Context) -> int:
    """A profile with all paths in rotation and none in reserve."""
    control = Controller(context)
    form, profile = control.ev_format_profile(), control.ev_profile()
    form.modify(ProfileState.OFFLINE, ev_format=EvFormat.UDP, widths=[16])
    form.modify(ProfileState.ONLINE)
    paths = sum(len(port.source_ports) for port in context.device.ports)
    profile.modify(ProfileState.OFFLINE, mode=EvMode.AUTO, format_profile=form, active=paths)
    profile.modify(ProfileState.ONLINE)
    return profile.profile_id
