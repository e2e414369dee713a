"""64-byte writes per second from one process to another through ``QueuePair.post_writes``; prints JSON.

The counterpart of ``benches/c/writes.c``: the same sizes, depth and number of writes in a call.
"""

import json
import os
import socket
import sys
import time

from openmrc.verbs import (
    CompletionQueue,
    Context,
    Device,
    MemoryRegion,
    QpCap,
    QpState,
    QueuePair,
    RemoteBuffer,
    WcStatus,
)

DEPTH, CHAIN, SIZE = 1024, 64, 64


def opened(node: int) -> tuple[Context, CompletionQueue, MemoryRegion, QueuePair]:
    """A device with a queue pair, its completion queue and its memory."""
    context = Device.loopback(node, planes=2).open()
    pd, cq = context.alloc_pd(), context.create_cq(DEPTH)
    region = pd.register(bytearray(1 << 20))
    return context, cq, region, pd.create_qp(cq, cap=QpCap(max_send_wr=DEPTH))


class Channel:
    """Lines to and from the peer. One file for both directions would drop lines read ahead when it writes."""

    def __init__(self, end: socket.socket) -> None:
        self.reader, self.writer = end.makefile("r"), end.makefile("w")

    def tell(self, line: str) -> None:
        """Sends a line."""
        self.writer.write(line + "\n")
        self.writer.flush()

    def hear(self) -> str:
        """Waits for a line."""
        return self.reader.readline()


def connect(channel: Channel, context: Context, region: MemoryRegion, qp: QueuePair) -> RemoteBuffer:
    """Exchanges addresses as JSON lines and brings the queue pair up; the peer's buffer."""
    qp.modify(QpState.INIT)
    mine = {"addresses": context.addresses, "qp": qp.qp_num, "at": [region.addr, region.length, region.rkey]}
    channel.tell(json.dumps(mine))
    peer = json.loads(channel.hear())
    remote = [tuple(address) for address in peer["addresses"]]
    qp.modify(QpState.RTR, dest_qp_num=peer["qp"], rq_psn=0, remote=remote)
    qp.modify(QpState.RTS, sq_psn=0)
    channel.tell("ready")
    channel.hear()
    return RemoteBuffer(*peer["at"])


def main() -> None:
    """Writes for as many seconds as the first argument says."""
    seconds = float(sys.argv[1])
    ends = socket.socketpair()
    child = os.fork()
    context, cq, region, qp = opened(31 if child else 32)
    channel = Channel(ends[child == 0])
    remote = connect(channel, context, region, qp)
    if child == 0:
        channel.hear()
        os._exit(0)
    posted = done = 0
    begin = time.monotonic()
    with context.polling():
        while (elapsed := time.monotonic() - begin) < seconds:
            while posted - done + CHAIN <= DEPTH:
                posted += qp.post_writes(region, remote, length=SIZE, count=CHAIN)
            for completion in cq.poll(16):
                if completion.status is not WcStatus.SUCCESS:
                    raise SystemExit(f"a write ended with {completion.status.name}")
                done += CHAIN
    print(json.dumps({"pps": done / elapsed}))
    channel.tell("end")
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
