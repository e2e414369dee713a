"""Two devices on loopback with their own addresses, and their queue pairs, for tests of verbs."""

import contextlib
import itertools
import os
import time
from dataclasses import dataclass

from openmrc.verbs import Context, Device, ProtectionDomain, QpCap, QpState, QueuePair

_count = itertools.count(1)


def loopback(planes):
    """Addresses of a device that nothing else uses, not even another test run on this machine."""
    node = next(_count)
    third, fourth = os.getpid() % 250 + 1, node % 250 + 1
    return [f"127.{64 + plane + 16 * (node // 250 % 12)}.{third}.{fourth}" for plane in range(planes)]


def device(planes=2, **options):
    """A device with addresses of its own."""
    return Device.from_addresses(*loopback(planes), **options)


@dataclass
class End:
    """One end of a connection."""

    context: Context
    pd: ProtectionDomain
    send_cq: object
    recv_cq: object
    qp: QueuePair

    def region(self, buffer, *access):
        return self.pd.register(buffer, *access)


def make_end(context, *, cqe=1024, cap=None, **qp_options):
    pd = context.alloc_pd()
    send_cq, recv_cq = context.create_cq(cqe), context.create_cq(cqe)
    return End(context, pd, send_cq, recv_cq, pd.create_qp(send_cq, recv_cq, cap=cap, **qp_options))


def bring_up(a, b, *, psns=(0x111111, 0xFFFFF0), rtr=None, rtr_a=None, rts=None):
    """Connects two ends by hand, as an application without a helper does."""
    for end in (a, b):
        if end.qp.state is QpState.RESET:
            end.qp.modify(QpState.INIT)
    for end, peer, psn, more in ((a, b, psns[1], rtr_a), (b, a, psns[0], None)):
        end.qp.modify(
            QpState.RTR,
            dest_qp_num=peer.qp.qp_num,
            rq_psn=psn,
            remote=peer.context.addresses,
            **(rtr or {}),
            **(more or {}),
        )
    for end, psn in ((a, psns[0]), (b, psns[1])):
        end.qp.modify(QpState.RTS, sq_psn=psn, **(rts or {}))


@contextlib.contextmanager
def connected(planes=2, *, cap=None, cqe=1024, rtr=None, rts=None, sq_sig_all=False, **options):
    """Two connected ends; their devices are closed at the end."""
    with device(planes, **options).open() as one, device(planes, **options).open() as two:
        a = make_end(one, cap=cap, cqe=cqe, sq_sig_all=sq_sig_all)
        b = make_end(two, cap=cap, cqe=cqe, sq_sig_all=sq_sig_all)
        bring_up(a, b, rtr=rtr, rts=rts)
        yield a, b


SMALL = QpCap(max_send_wr=4, max_recv_wr=4)


def eventually(condition, seconds=20.0):
    """Whether a condition becomes true; the time only prevents a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
