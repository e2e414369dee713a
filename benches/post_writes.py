"""64-byte writes per second from one process to another through ``QueuePair.post_writes``; prints JSON.

The counterpart of ``benches/c/writes.c``: the same sizes, depth and number of writes in a call.
"""

import json
import os
import socket
import sys
import time
from typing import IO

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


def connect(channel: IO[str], context: Context, region: MemoryRegion, qp: QueuePair) -> RemoteBuffer:
    """Exchanges addresses as JSON lines and brings the queue pair up; the peer's buffer."""
    qp.modify(QpState.INIT)
    mine = {"addresses": context.addresses, "qp": qp.qp_num, "at": [region.addr, region.length, region.rkey]}
    channel.write(json.dumps(mine) + "\n")
    channel.flush()
    peer = json.loads(channel.readline())
    remote = [tuple(address) for address in peer["addresses"]]
    qp.modify(QpState.RTR, dest_qp_num=peer["qp"], rq_psn=0, remote=remote)
    qp.modify(QpState.RTS, sq_psn=0)
    channel.write("ready\n")
    channel.flush()
    channel.readline()
    return RemoteBuffer(*peer["at"])


def main() -> None:
    """Writes for as many seconds as the first argument says."""
    seconds = float(sys.argv[1])
    ends = socket.socketpair()
    child = os.fork()
    context, cq, region, qp = opened(31 if child else 32)
    channel = ends[child == 0].makefile("rw")
    remote = connect(channel, context, region, qp)
    if child == 0:
        channel.readline()
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
    channel.write("end\n")
    channel.flush()
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
