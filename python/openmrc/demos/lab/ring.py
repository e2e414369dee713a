"""A ring of writes over MRC: a queue pair from each host to the next, at a steady pace, all data checked."""

import os
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from openmrc.controller import Controller, EvMode, ProfileState
from openmrc.demos.lab.recording import Flow
from openmrc.demos.lab.scene import RING, pairs
from openmrc.demos.lab.sender import Sender, catch_up
from openmrc.errors import Error
from openmrc.fabric import Path
from openmrc.handshake import End, Options
from openmrc.lab import Lab, entered
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
"""Packets of a write."""

SLOTS = 256
"""Most writes outstanding: what is posted in half a second."""

_PIECE = PATH_MTU * PACKETS
_STAMP = struct.Struct("<QQ")
_BASE_RTT_US = 200.0
"""Round-trip time over six idle links of this kind."""
_PATIENCE_S = 30.0


@dataclass
class _Stream:
    """The writes from one host to the next."""

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
    outstanding: deque[tuple[int, bytes]] = field(default_factory=deque)
    """For each write that has not arrived: when it was posted, and its digest."""


_ACK_DELAY_US = 200.0
"""One SACK for each write of four packets, instead of one for each packet."""


class Ring(Sender):
    """Writes until it is stopped, and checks what arrives.

    Args:
        lab: Where.
        rate_bps: What each host offers.
        hosts: Each writes to the next, and the last to the first.
        srv6: Whether the NICs build SRv6 frames themselves; otherwise the hosts' kernels add the outer
            header.
        options: Other fields of the hosts' devices.
    """

    def __init__(
        self, lab: Lab, rate_bps: float, hosts: Sequence[str] = RING, *, srv6: bool = False, **options: Any
    ) -> None:
        self._lab = lab
        self._interval = _PIECE * 8 / rate_bps
        super().__init__("openmrc-lab-ring", [Flow("mrc", src, dst, rate_bps) for src, dst in pairs(hosts)])
        self.contexts: dict[str, Context] = {}
        self.streams: list[_Stream] = []
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
                self.streams.append(self._connect(src, dst))
        except BaseException:
            self._stack.close()
            raise

    def _connect(self, src: str, dst: str) -> _Stream:
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
        return _Stream(src, dst, mine, theirs, source, memoryview(out), memoryview(inbox), remote)

    def _options(self, context: Context) -> Options:
        # With SRv6 the context itself makes a profile of all paths to each peer.
        return Options(path_mtu=PATH_MTU, ev_profile_id=None if self._srv6 else _every_path(context))

    def path(self, src: str, dst: str, port: int, ev: int) -> Path:
        """The path of an entropy value on a port of a host."""
        if self._srv6:
            return self._lab.fabric.path_of(ev, src, dst)
        return self._lab.path(src, dst, port, ev)

    def _stagger(self, now: float) -> None:
        for number, stream in enumerate(self.streams):
            # Hosts do not send at the same moment.
            stream.due = now + self._interval * number / len(self.streams)

    def _outstanding(self, waited_s: float) -> bool:
        if not any(stream.outstanding for stream in self.streams):
            return False
        if waited_s > _PATIENCE_S:
            raise Error(f"writes did not arrive within {_PATIENCE_S:g} s of the end")
        return True

    def _tick(self, *, posting: bool) -> None:
        for number, stream in enumerate(self.streams):
            if posting:
                self._post(stream)
            self._take(number, stream)
        self.recording.series.take(stream.arrived * _PIECE for stream in self.streams)

    def _post(self, stream: _Stream) -> None:
        now = time.monotonic()
        stream.due = catch_up(stream.due, now)
        while stream.due <= now:
            if stream.posted - min(stream.arrived, stream.completed) >= SLOTS:
                return
            begin = stream.posted % SLOTS * _PIECE
            piece = stream.out[begin : begin + _PIECE]
            for packet in range(PACKETS):
                # All packets differ: a missing one changes the digest.
                _STAMP.pack_into(piece, packet * PATH_MTU, stream.posted, packet)
            stream.outstanding.append((time.monotonic_ns(), xxhash.xxh3_64_digest(piece)))
            stream.qp.post_send(
                SendWR(
                    sg_list=(stream.source.sge(begin, _PIECE),),
                    remote_addr=stream.remote.addr + begin,
                    rkey=stream.remote.rkey,
                    imm_data=stream.posted & 0xFFFF_FFFF,
                )
            )
            stream.posted += 1
            stream.due += self._interval

    def _take(self, number: int, stream: _Stream) -> None:
        arrived = stream.peer.recv_cq.poll(SLOTS)
        for completion in arrived:
            if not completion.ok:
                raise Error(f"{stream.dst}: {completion.status.name} receiving from {stream.src}")
            begin = stream.arrived % SLOTS * _PIECE
            posted_ns, digest = stream.outstanding.popleft()
            right = completion.imm_data == stream.arrived & 0xFFFF_FFFF
            right &= xxhash.xxh3_64_digest(stream.inbox[begin : begin + _PIECE]) == digest
            self.recording.wrong += not right
            self.recording.pieces += 1
            stream.arrived += 1
            self.recording.waits.add(number, posted_ns, time.monotonic_ns())
        if arrived:
            stream.peer.post_recv(len(arrived))
        for completion in stream.qp.send_cq.poll(SLOTS):
            if not completion.ok:
                raise Error(f"{stream.src}: {completion.status.name} writing to {stream.dst}")
            stream.completed += 1


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
