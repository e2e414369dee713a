"""Ranks that do not agree are named at once, also where no message of one meets the other."""

import re

import pytest

from tests.helpers.ranks import HEAD, finish, start

ALL_HERE = """
    comm._store.set(f"here/{rank}", b"")
    for each in range(size):
        comm._store.get(f"here/{each}", 60)
"""
"""No rank begins while another one is still making the communicator: it would end with the error."""


def run(script, size, **environment):
    return finish(start(script, size, head=HEAD + ALL_HERE, **environment))


@pytest.mark.parametrize("shared", ["1", "0"])
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "call",
    [
        "comm.broadcast(x, rank)",
        "comm.reduce(x, None, rank)",
        "comm.gather(x, np.empty(x.size * size), rank)",
        "comm.scatter(x, np.empty(x.size * size), rank)",
    ],
    ids=["broadcast", "reduce", "gather", "scatter"],
)
def test_ranks_with_different_roots_are_named(call, size, shared):
    script = f"""
        x = np.full(1_000_000, float(rank))
        try:
            {call}
            comm.barrier()
        except Exception as error:
            print(type(error).__name__, error)
        else:
            print("no error")
    """
    outs = run(script, size, SHARED=shared)
    assert all(out.startswith(("MismatchError", "AbortedError")) for out in outs), outs
    assert any(len(set(re.findall(r"root \d", out))) == 2 for out in outs), outs


def test_a_small_broadcast_from_two_roots_fails_at_the_next_call_at_the_latest():
    script = """
        x = np.full(3, float(rank))
        try:
            comm.broadcast(x, rank)
            comm.barrier()
        except Exception as error:
            print(type(error).__name__, error)
        else:
            print("no error")
    """
    outs = run(script, 2)
    assert all(out.startswith(("MismatchError", "AbortedError")) for out in outs), outs
    assert any(len(set(re.findall(r"root \d", out))) == 2 for out in outs), outs


def test_rows_that_a_rank_does_not_expect_are_named():
    script = """
        x, y = np.ones(4), np.ones(2 if rank == 0 else 4)
        counts = [2, 0] if rank == 0 else [2, 2]
        try:
            comm.all_to_all(x[:4], y, send_counts=[2, 2], recv_counts=counts)
            comm.barrier()
        except Exception as error:
            print(type(error).__name__, error)
        else:
            print("no error")
    """
    outs = run(script, 2)
    assert outs[0].startswith("MismatchError rank 1 called all_to_all"), outs
    assert "expects less of it" in outs[0]


@pytest.mark.parametrize("posted", ["before", "after"])
def test_a_message_of_another_type_is_named(posted):
    script = f"""
        if rank == 0:
            if {posted!r} == "after":
                comm.send(np.ones(3), 1, tag=5)
            comm.send(np.ones(4, np.float32), 1, tag=7)
        else:
            x = np.ones(3)
            if {posted!r} == "after":
                comm.recv(x, 0, tag=5)
            try:
                comm.recv(np.empty(4, np.int32), 0, tag=7)
            except Exception as error:
                print(type(error).__name__, error)
        comm.barrier()
    """
    _, out = run(script, 2)
    assert out.startswith("MismatchError")
    assert "float32" in out
    assert "int32" in out


def test_a_slow_operation_is_reported_once_a_period_with_who_has_not_called_it():
    script = """
        import logging, threading
        from openmrc.collectives import work as works
        reports = []
        class Kept(logging.Handler):
            def emit(self, record):
                reports.append(record.getMessage())
        logging.getLogger("openmrc.collectives").addHandler(Kept())
        works.SLOW_AFTER = 6.0
        if rank == 2:
            comm.recv(np.empty(1), 0, tag=9)
            comm.barrier()
        else:
            work = comm.barrier(async_op=True)
            work._next_warning = 6.0
            while not reports:
                try:
                    work.wait(0.01)
                except TimeoutError:
                    pass
            for _ in range(50):
                try:
                    work.wait(0.01)
                except TimeoutError:
                    pass
            if rank == 0:
                comm.send(np.ones(1), 2, tag=9)
            work.wait()
            print(len(reports), reports[0])
    """
    outs = run(script, 3)
    for out in outs[:2]:
        assert out.startswith("1 barrier")
        assert "not called by rank 2 on" in out, outs
        assert "rank 1" not in out.partition("not called")[2], outs
