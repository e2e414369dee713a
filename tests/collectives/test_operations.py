"""Collective operations between processes: results, errors, and ranks that end in the middle."""

import asyncio
import json
import signal
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from openmrc import Error
from openmrc.collectives import Communicator, TcpStore
from openmrc.collectives.rendezvous import default_path_mtu, is_crowded
from openmrc.control import Limits, Token
from openmrc.errors import ArgumentError, ConnectError, DeadlineError, DeviceError
from tests.helpers.ranks import finish, free_port, run, start

SECRET = "0123456789abcdef0123456789abcdef"
TOKEN = Token(SECRET)
both_ways = pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "network"])


@pytest.fixture
def alone():
    """A communicator of one rank."""
    with TcpStore("127.0.0.1", 0, serve=True) as store, Communicator(0, 1, store) as comm:
        yield comm


@both_ways
def test_every_operation(shared):
    script = """
        x = np.arange(1000, dtype=np.float32) + rank
        comm.all_reduce(x)
        assert (x == np.arange(1000) * size + 3).all()

        y = np.empty(3, np.int64)
        comm.all_gather(np.array([rank], np.int64), y)
        assert y.tolist() == [0, 1, 2]
        z = np.empty(6, np.int64)
        counts = [1, 2, 3]
        comm.all_gather(np.full(rank + 1, rank), z, counts=counts)
        assert z.tolist() == [0, 1, 1, 2, 2, 2]

        part = np.empty(rank + 1, np.float64)
        comm.reduce_scatter(np.arange(6.0), part, counts=counts, op="max")
        assert part.tolist() == [[0], [1, 2], [3, 4, 5]][rank]

        out = np.empty(3, np.int32)
        comm.all_to_all(np.arange(3, dtype=np.int32) + 10 * rank, out)
        assert out.tolist() == [rank, 10 + rank, 20 + rank]

        b = bytearray(b"root" if rank == 1 else b"....")
        comm.broadcast(b, 1)
        assert b == b"root"

        total = np.zeros(2, np.int8)
        comm.reduce(np.array([1, rank], np.int8), total, 2)
        assert total.tolist() == ([3, 3] if rank == 2 else [0, 0])

        all_of = np.zeros((3, 2), np.uint8)
        comm.gather(np.array([rank, 7], np.uint8), all_of, 0)
        assert all_of.tolist() == ([[0, 7], [1, 7], [2, 7]] if rank == 0 else [[0, 0]] * 3)

        mine = np.zeros(2)
        comm.scatter(mine, np.arange(6.0) if rank == 0 else None, 0)
        assert mine.tolist() == [2 * rank, 2 * rank + 1]

        ring = np.full(5, rank)
        got = np.empty(5, np.int64)
        work = comm.send(ring, (rank + 1) % size, tag=4, async_op=True)
        comm.recv(got, (rank - 1) % size, tag=4)
        work.wait()
        assert (got == (rank - 1) % size).all()

        comm.barrier()
        totals = comm.totals()
        assert (totals["shared_bytes"] > 0) == shared and (totals["network_bytes"] > 0) != shared
    """
    run(script, 3, SHARED=shared)


@both_ways
def test_half_types_are_the_same_everywhere_and_from_run_to_run(shared):
    script = """
        rng = np.random.default_rng(rank)
        results = []
        for algorithm in ("direct", "halving", "doubling", "ring", "tree"):
            for dtype in (np.float16, np.float32):
                x = rng.standard_normal(20_000).astype(dtype)
                comm.all_reduce(x, algorithm=algorithm)
                results.append(x.tobytes().hex()[:4000])
        import hashlib
        print(hashlib.sha256("".join(results).encode()).hexdigest())
    """
    first, second = run(script, 4, SHARED=shared), run(script, 4, SHARED=shared)
    assert len(set(first + second)) == 1


def test_reductions_of_every_type_are_those_of_numpy():
    script = """
        ops = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
        signed = (np.int64, np.int32, np.int16, np.int8)
        unsigned = (np.uint64, np.uint32, np.uint16, np.uint8)
        types = (np.float64, np.float32, np.float16, *signed, *unsigned)
        for dtype in types:
            # A length that no vector divides, and values that overflow integers of 8 bits.
            drawn = [np.random.default_rng(r).integers(-100, 100, 1003) for r in (0, 1)]
            inputs = [x.astype(dtype) for x in drawn]
            if dtype is np.float16:
                inputs = [(x / 7).astype(dtype) for x in inputs]
            wide = np.float32 if dtype is np.float16 else dtype
            for op, ufunc in ops.items():
                for algorithm in ("direct", "ring"):
                    x = inputs[rank].copy()
                    comm.all_reduce(x, op=op, algorithm=algorithm)
                    expected = ufunc(inputs[0].astype(wide), inputs[1].astype(wide)).astype(dtype)
                    assert (x == expected).all(), (dtype, op, algorithm)
    """
    run(script, 2)


def test_the_network_gives_the_same_bits_as_shared_memory_whatever_it_loses():
    script = """
        from openmrc.testing import Impairment, impaired
        x = np.random.default_rng(rank).standard_normal(500_000).astype(np.float32)
        with impaired(comm.device, Impairment.drop(probability=0.02)):
            comm.all_reduce(x)
        import hashlib
        print(hashlib.sha256(x.tobytes()).hexdigest())
    """
    assert len(set(run(script, 2, SHARED="0") + run(script, 2, SHARED="1"))) == 1


def test_split_divides_the_ranks():
    script = """
        part = comm.split(rank % 2, key=-rank)
        x = np.array([rank])
        part.all_reduce(x)
        none = comm.split(None if rank else 0)
        print(json.dumps([part.rank, part.size, int(x[0]), none is None]))
        part.close()
    """
    results = [json.loads(out) for out in run(script, 4)]
    assert results == [[1, 2, 2, False], [1, 2, 4, True], [0, 2, 2, True], [0, 2, 4, True]]


@both_ways
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_rank_is_named_and_the_others_go_on_without_it(shared, seed):
    script = """
        x = np.ones(3_000_000, np.float32)
        print("ready", flush=True)
        try:
            while True:
                comm.all_reduce(x, op="max", timeout=20)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
        if rank == 1:
            time.sleep(60)
        smaller = comm.remake([0, 2])
        y = np.array([rank])
        smaller.all_reduce(y)
        print(words)
        print(y[0], flush=True)
        smaller.close()
    """
    processes = start(script, 3, SHARED=shared)
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    time.sleep(0.05 + 0.037 * seed)
    processes[1].send_signal(signal.SIGKILL)
    processes[1].wait()
    outs = finish([processes[0], processes[2]])
    processes[1].communicate()
    assert any("rank 1" in out for out in outs), outs
    for out in outs:
        assert out.splitlines()[-1] == "2", out


@both_ways
def test_a_stopped_rank_ends_an_operation_by_its_time_limit(shared):
    script = """
        x = np.ones(4)
        if rank == 1:
            time.sleep(0.5)  # What it had to send has left.
            print("stopping", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            sys.stdout.flush()
            os._exit(0)
        try:
            comm.all_reduce(x, timeout=1.5)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    """
    processes = start(script, 2, SHARED=shared)
    assert processes[1].stdout.readline() == "stopping\n"
    [out] = finish(processes[:1])
    assert out.startswith("DeadlineError: all_reduce of 4 float64")
    assert "rank 1" in out
    processes[1].send_signal(signal.SIGKILL)
    processes[1].communicate()


@both_ways
def test_different_calls_are_named(shared):
    script = """
        x = np.ones(4, np.float32 if rank else np.float64)
        try:
            comm.all_reduce(x)
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    """
    outs = run(script, 2, SHARED=shared)
    assert any(out.startswith("MismatchError") and "float32" in out and "float64" in out for out in outs), (
        outs
    )
    assert all(out.startswith(("MismatchError", "AbortedError")) for out in outs), outs


def test_a_rank_that_leaves_has_delivered_what_it_sent():
    script = """
        from openmrc.testing import Impairment, impaired
        x = np.arange(10)
        if rank == 0:
            with impaired(comm.device, Impairment.drop(end=0.5)):
                comm.send(x, 1)
                comm.close()
        else:
            y = np.zeros_like(x)
            comm.recv(y, 0)
            assert (x == y).all()
    """
    run(script, 2, SHARED="0")


def test_works_can_be_awaited():
    script = """
        import asyncio
        async def main():
            x, y = np.ones(100_000), np.full(3, rank)
            works = [comm.all_reduce(x, async_op=True), comm.all_reduce(y, async_op=True)]
            await asyncio.gather(*works)
            print(x[0], y[0])
        asyncio.run(main())
    """
    assert run(script, 2) == ["2.0 1\n"] * 2


def test_an_interrupted_wait_leaves_nothing_behind():
    script = """
        if rank == 0:
            print("waiting", flush=True)
            try:
                comm.all_reduce(np.ones(10))
            except KeyboardInterrupt:
                print("interrupted")
        else:
            try:
                comm.recv(np.ones(1), 0)
            except Exception as error:
                print(type(error).__name__)
    """
    processes = start(
        script.replace("comm.barrier()\n                comm.barrier()", "comm.recv(np.ones(1), 0)"), 2
    )
    assert processes[0].stdout.readline() == "waiting\n"
    time.sleep(0.3)
    processes[0].send_signal(signal.SIGINT)
    outs = finish(processes)
    assert outs == ["interrupted\n", "AbortedError\n"]


def test_results_of_one_rank_are_its_input(alone):
    x, y = np.arange(4.0), np.zeros(4)
    alone.all_reduce(x, y, op="avg")
    assert (x == y).all()
    alone.all_gather(x, y)
    alone.barrier()
    assert alone.split(3).size == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda c: c.all_reduce(memoryview(bytearray(8))[::2]), "not contiguous"),
        (lambda c: c.all_reduce(b"bytes"), "read-only"),
        (lambda c: c.all_reduce(np.ones(3), np.ones(4)), "the output has 4 elements, not 3"),
        (lambda c: c.all_reduce(np.ones(3), np.ones(3, np.float32)), "type float32, not float64"),
        (lambda c: c.all_reduce(np.ones(3, complex), op="max"), "no max of complex128"),
        (lambda c: c.all_reduce(np.ones(3, "M8[s]")), "no sum of datetime64"),
        (lambda c: c.broadcast(np.array([None])), "Python objects"),
        (lambda c: c.all_reduce(np.ones(3), op="mean"), 'no reduction "mean"'),
        (lambda c: c.all_reduce(np.ones(3), op="bor"), "no bor of float64"),
        (lambda c: c.all_reduce(np.ones(3), algorithm="chain"), "cannot be executed by chain"),
        (lambda c: c.all_reduce([1, 2]), "is a list"),
        (lambda c: c.all_reduce(np.ones(3), timeout=-1), "no time limit"),
        (lambda c: c.broadcast(np.ones(3), 5), "root 5 does not exist"),
        (lambda c: c.send(np.ones(3), 0), "rank 0 of 1 cannot exchange messages with rank 0"),
        (lambda c: c.send(np.ones(3), 1, tag=-1), "tag -1"),
        (lambda c: c.all_gather(np.ones(3), np.ones(3), counts=[1, 2]), "one for each of 1 ranks"),
        (lambda c: c.remake([1]), "rank 0 is not among"),
    ],
)
def test_what_cannot_be_called_is_refused(alone, call, words):
    with pytest.raises(ArgumentError) as raised:
        call(alone)
    assert words in str(raised.value)
    assert isinstance(raised.value, Error)
    alone.barrier()  # Nothing was begun.


def test_overlapping_memory_is_refused():
    script = """
        x = np.ones(10)
        try:
            comm.all_gather(x[:5], x)  # Rank 0's part lies where it belongs, rank 1's does not.
        except Exception as error:
            print(error)
    """
    processes = start(script, 2)
    processes[1].wait(60)
    assert "overlap" in processes[1].communicate()[0]
    processes[0].wait(60)
    processes[0].communicate()


def test_a_rank_that_does_not_come_is_named():
    with TcpStore("127.0.0.1", 0, serve=True) as store, pytest.raises(DeadlineError, match="rank 1 of 2"):
        Communicator(0, 2, store, timeout=0.5)


def test_ranks_that_disagree_about_their_number_are_named():
    with TcpStore("127.0.0.1", 0, serve=True) as store:
        errors = []

        def join(rank, size):
            with TcpStore(*store.address) as own:
                try:
                    Communicator(rank, size, own, timeout=60)
                except ArgumentError as error:
                    errors.append(str(error))

        began = time.monotonic()
        threads = [threading.Thread(target=join, args=ends) for ends in ((0, 2), (1, 3))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 30
    assert sorted(errors) == [
        "rank 0 has come to a job of 2 ranks, and rank 1 to one of 3",
        "rank 1 has come to a job of 3 ranks, and rank 0 to one of 2",
    ]


def test_a_store_that_vanishes_while_ranks_meet_is_named():
    with TcpStore("127.0.0.1", 0, serve=True) as store, TcpStore(*store.address) as other:
        threading.Timer(0.3, store.close).start()
        with pytest.raises(ConnectError, match=r"the rank that serves the store at .* has gone"):
            Communicator(1, 2, other, timeout=60)


def test_a_store_that_says_nothing_is_given_up_in_the_time_of_the_caller():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for token in (None, TOKEN):
            with pytest.raises(ConnectError, match=r"did not answer within 0\.[0-3]"):
                TcpStore(*silent.getsockname(), token=token, timeout=0.3)


def test_a_store_sends_away_whoever_does_not_prove_the_token():
    with TcpStore("127.0.0.1", 0, serve=True, token=TOKEN, limits=Limits(greeting=0.3)) as store:
        with socket.create_connection(store.address, timeout=30) as stranger:
            assert stranger.recv(100) == b""
        # Later silence is no offence.
        time.sleep(0.5)
        store.set("a", b"b")
        assert store.get("a", 1) == b"b"


@both_ways
def test_operations_without_elements_end(shared):
    script = """
        none = np.empty(0, np.float32)
        for op in (comm.all_reduce, comm.broadcast, comm.reduce):
            op(none)
        for op in (comm.reduce_scatter, comm.all_gather, comm.all_to_all, comm.gather, comm.scatter):
            op(none, none.copy())
        part = np.empty(3 if rank else 0)
        comm.all_to_all(np.ones(3 * rank), part, send_counts=[0, 3 * rank], recv_counts=[0, 3 * rank])
        comm.send(none, 1 - rank, async_op=True)
        comm.recv(none, 1 - rank)
        x = np.array([rank]); comm.all_reduce(x); assert x == 1
    """
    run(script, 2, SHARED=shared)


@both_ways
def test_records_list_the_messages_that_were_sent_if_asked(shared):
    script = """
        comm.records()
        comm.record_messages()
        comm.all_reduce(np.ones(11, np.float32), algorithm="ring")
        comm.record_messages(False)
        comm.all_reduce(np.ones(11, np.float32), algorithm="ring")
        first, second = (record.messages for record in comm.records())
        # Six elements and five; each rank begins with its own part.
        sizes = (24, 20) if rank == 0 else (20, 24)
        assert first == tuple((1 - rank, size) for size in sizes), first
        assert second == ()
    """
    run(script, 2, SHARED=shared)


def test_more_elements_than_2_to_the_31(alone):
    # Zeros that nobody touches take no memory.
    x = np.zeros((1 << 31) + 8, np.uint8)
    alone.all_reduce(x, op="max")
    alone.broadcast(x)
    [*_, last] = alone.records()
    assert last.nbytes == (1 << 31) + 8


@pytest.mark.long
def test_two_ranks_reduce_more_than_2_to_the_31_elements():
    script = """
        x = np.zeros((1 << 31) + 9, np.uint8)
        x[-1] = x[1 << 31] = x[0] = rank + 1
        comm.all_reduce(x, op="max")
        assert (x[0], x[1], x[1 << 31], x[-1]) == (2, 0, 2, 2)
    """
    run(script, 2)


def test_ranks_without_planes_in_common_are_told_so():
    script = """
        from openmrc.planes import Planes
        from openmrc.collectives import TcpStore
        address = ["127.0.0.1", "::1"][rank]
        try:
            with TcpStore("127.0.0.1", int(os.environ["MASTER_PORT"]), serve=rank == 0) as store:
                Communicator(rank, 2, store, planes=Planes(addresses=(address,)),
                             tuned=Tuned(shared_memory=False), timeout=20)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    """
    head = """
        import os
        from openmrc.collectives import Communicator
        from openmrc.collectives.rendezvous import Tuned
        rank = int(os.environ["RANK"])
    """
    outs = run(script, 2, head=head, tail="")
    assert outs[0] == "DeviceError connecting with rank 1: the peer's ::1 cannot be reached from 127.0.0.1\n"
    assert outs[1], "no exception"


@both_ways
def test_an_interpreter_that_exits_in_the_middle_ends_and_the_others_are_told(shared):
    script = """
        x = np.ones(4_000_000, np.float32)
        try:
            comm.all_reduce(x[:1].copy())  # The other has begun.
            works = [comm.all_reduce(x, op="max", async_op=True) for _ in range(3)]
            if rank == 0:
                sys.exit(0)
            for work in works:
                work.wait()
            comm.all_reduce(x, op="max", timeout=20)
        except Exception as error:
            print(type(error).__name__)
    """
    outs = run(script, 2, SHARED=shared)
    assert outs[0] == ""
    assert outs[1].strip() in ("AbortedError", "RankLostError", "DeadlineError"), outs


def test_a_store_with_a_token_refuses_others():
    with TcpStore("127.0.0.1", 0, serve=True, token=TOKEN) as store:
        port = store.address[1]
        store.set("key", b"value")
        with TcpStore("127.0.0.1", port, token=TOKEN) as other:
            assert other.get("key", 1) == b"value"
        with pytest.raises(ConnectError, match="different tokens"):
            TcpStore("127.0.0.1", port, token=Token(SECRET[::-1]), timeout=5)


def test_a_store_waits_for_a_key_and_survives_strangers():
    import socket

    with TcpStore("127.0.0.1", 0, serve=True) as store:
        strangers = [socket.create_connection(store.address) for _ in range(5)]
        strangers[0].sendall(b"\xff" * 100)
        threading.Timer(0.2, store.set, ("late", b"1")).start()
        with TcpStore(*store.address) as other:
            assert other.get("late", 30) == b"1"
            with pytest.raises(DeadlineError):
                other.get("never", 0.2)
        for stranger in strangers:
            stranger.close()


def test_a_store_is_served_over_ipv6():
    with TcpStore("::1", 0, serve=True) as store, TcpStore("::1", store.address[1]) as other:
        other.set("key", b"value")
        assert store.get("key", 1) == b"value"
        assert other.local_address == "::1"


def test_a_port_that_is_taken_and_an_address_of_another_host_are_named():
    with TcpStore("127.0.0.1", 0, serve=True) as store:
        port = store.address[1]
        with pytest.raises(DeviceError, match=f"served at 127.0.0.1:{port}: .*[Aa]ddress already in use"):
            TcpStore("127.0.0.1", port, serve=True)
    with pytest.raises(DeviceError, match=r"served at 192\.0\.2\.1:"):
        TcpStore("192.0.2.1", 0, serve=True)


def test_a_store_that_is_not_there():
    with pytest.raises(ConnectError, match="no rank serves the store"):
        TcpStore("127.0.0.1", free_port(), timeout=0.3)


def test_the_environment_must_say_who_this_is(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ArgumentError, match="RANK is not set"):
        Communicator.from_environment()
    monkeypatch.setenv("RANK", "x")
    with pytest.raises(ArgumentError, match="RANK is 'x'"):
        Communicator.from_environment()


def shared_memory():
    """What has a name in shared memory, without that of joblib, which other tests use at the same time."""
    return {file for file in Path("/dev/shm").iterdir() if not file.name.startswith(("sem.loky", "joblib"))}


def test_nothing_is_left_in_shared_memory_or_of_threads(alone):
    before = threading.active_count()
    files = shared_memory()
    run("comm.all_reduce(np.ones(10))", 2)
    assert shared_memory() <= files
    assert threading.active_count() == before


def test_a_closed_communicator_says_so(alone):
    alone.close()
    alone.close()
    with pytest.raises(Error, match="closed"):
        alone.barrier()


def test_events_of_asyncio_are_not_needed_for_what_has_ended(alone):
    async def main():
        await alone.all_reduce(np.ones(3), async_op=True)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("cpus", "crowded"),
    [([[0], [1]], False), ([[0, 1]] * 2, False), ([[0, 1]] * 3, True), ([[0], [0]], True), ([[5]], False)],
)
def test_a_host_is_crowded_where_not_each_rank_has_a_processor(cpus, crowded):
    places = [{"host": "a", "cpus": list(own)} for own in cpus] + [{"host": "b", "cpus": [7]}]
    assert is_crowded(places, 0) == crowded
    assert not is_crowded(places, len(cpus)), "alone on its host"


@pytest.mark.parametrize(
    ("addresses", "mtu"),
    [
        (["127.1.2.3", "127.1.2.4"], 8192),
        (["10.0.0.1", "10.0.1.1"], 4096),
        (["127.1.2.3", "10.0.0.1"], 4096),
    ],
)
def test_packets_are_longest_where_all_planes_are_on_loopback(addresses, mtu):
    assert default_path_mtu([(address, 4791) for address in addresses]) == mtu


def test_an_operation_over_loopback_has_packets_of_the_longest_path_mtu():
    script = """
        x = np.zeros(8 << 20, np.uint8)
        def sent():
            ports = comm.device.stats()["ports"]
            return np.array([(port["tx_packets"], port["tx_bytes"]) for port in ports]).sum(0)
        before = sent()
        comm.all_to_all(np.empty_like(x), x)
        packets, carried = sent() - before
        # Every answer and repetition counts as well.
        assert packets * 4096 < carried, (packets, carried)
    """
    run(script, 2, SHARED="0")
