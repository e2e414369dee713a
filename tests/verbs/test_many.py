"""Thousands of queue pairs in one process: all of them work, and none costs much."""

from pathlib import Path

import pytest

from openmrc.verbs import QpCap, QpState
from tests.helpers.ends import device

CAP = QpCap(max_send_wr=16, max_recv_wr=16)
BYTES = 64 << 10
MANY = [2_000, pytest.param(10_000, marks=pytest.mark.long)]
"""`make test` and `make long`."""


def resident():
    """Bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("many", MANY)
def test_thousands_of_queue_pairs_share_two_devices(many):
    with device(8).open() as one, device(8).open() as two:
        pds = one.alloc_pd(), two.alloc_pd()
        cqs = one.create_cq(many), two.create_cq(many)
        before = resident()
        senders, receivers = (
            [pd.create_qp(cq, cap=CAP) for _ in range(many // 2)] for pd, cq in zip(pds, cqs, strict=True)
        )
        for a, b in zip(senders, receivers, strict=True):
            for qp, peer in ((a, b), (b, a)):
                qp.modify(QpState.INIT)
                qp.modify(QpState.RTR, dest_qp_num=peer.qp_num, rq_psn=7, remote=peer.context.addresses)
                qp.modify(QpState.RTS, sq_psn=7)
        assert (resident() - before) / many < 16 << 10

        source = pds[0].register(bytearray(range(256)) * (BYTES // 256))
        target = bytearray(BYTES)
        remote = pds[1].register(target).remote()
        for qp in senders[::50]:
            qp.write(source, remote)
        assert all(done.ok for done in cqs[0].take(len(senders[::50]), 60))
        assert target == source.buffer

        marks = bytearray(many // 2)
        remote = pds[1].register(marks).remote()
        for number, qp in enumerate(senders):
            qp.write(b"\1", remote.at(number))
        done = cqs[0].take(len(senders), 60)
        assert all(each.ok for each in done)
        assert {each.qp_num for each in done} == {qp.qp_num for qp in senders}
        assert marks == b"\1" * len(marks)
        # Those that wait for their turn ask for their answers now and then, not all the time.
        probes = sum(qp.stats()["probes"] for qp in senders)
        assert probes < 10 * len(senders)

        for qp in senders[::2]:
            qp.close()
        survivor = senders[1]
        survivor.write(b"\2", remote)
        assert cqs[0].take(1, 20)[0].ok
        assert marks[0] == 2
