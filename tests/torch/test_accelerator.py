"""Tensors on accelerators, in the order of their streams. `make test-torch` has torch."""

import pytest

from tests.helpers.repository import ROOT
from tests.helpers.torch_ranks import run

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

LATE = """
    from tests.helpers import late_device
    from tests.helpers.late_device import GATE, Late, current
    late_device.install()
    from torch._C import _distributed_c10d as c10d
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))

    def far(*shape, start=0.0):
        x = torch.empty(*shape)
        x.copy_(torch.arange(x.numel()).view(*shape) + 100 * rank + start)
        return Late(x)

    def near(x):
        late_device.synchronize()
        return x.inner
"""


def late(script, size=2):
    """Runs a script at ranks whose accelerator works as late as it may."""
    return run(LATE + script, size, PYTHONPATH=str(ROOT))


def test_every_operation_on_an_accelerator_gives_what_it_gives_in_main_memory():
    script = """
    def options(kind, **fields):
        made = kind()
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def all_reduce(make):
        x = make(7)
        return backend.allreduce([x], c10d.AllreduceOptions()), [x]

    def maximum_of_columns(make):
        x = make(4, 6)[:, ::2]
        return backend.allreduce([x], options(c10d.AllreduceOptions, reduceOp=dist.ReduceOp.MAX)), [x]

    def coalesced(make):
        xs = [make(3), make(5)]
        return backend.allreduce_coalesced(xs, c10d.AllreduceCoalescedOptions()), xs

    def broadcast(make):
        x = make(5)
        return backend.broadcast([x], options(c10d.BroadcastOptions, rootRank=1)), [x]

    def reduce(make):
        x = make(5)
        work = backend.reduce([x], options(c10d.ReduceOptions, rootRank=1))
        return work, [x] if rank == 1 else []

    def all_gather(make):
        outs = [make(2, 2) for _ in range(size)]
        return backend.allgather([outs], [make(2, 2)], c10d.AllgatherOptions()), outs

    def all_gather_single(make):
        out = make(size, 3)
        return backend._allgather_base(out, make(3), c10d.AllgatherOptions()), [out]

    def reduce_scatter(make):
        out = make(2)
        parts = [make(2, start=10.0 * i) for i in range(size)]
        return backend.reduce_scatter([out], [parts], c10d.ReduceScatterOptions()), [out]

    def reduce_scatter_single(make):
        out = make(2)
        return backend._reduce_scatter_base(out, make(2 * size), c10d.ReduceScatterOptions()), [out]

    def all_to_all_single(make):
        out = make(2 * size)
        return backend.alltoall_base(out, make(2 * size), [], [], c10d.AllToAllOptions()), [out]

    def all_to_all(make):
        outs = [make(3) for _ in range(size)]
        ins = [make(3, start=10.0 * i) for i in range(size)]
        return backend.alltoall(outs, ins, c10d.AllToAllOptions()), outs

    def gather(make):
        outs = [make(3) for _ in range(size)] if rank == 0 else []
        given = [outs] if rank == 0 else []
        return backend.gather(given, [make(3)], options(c10d.GatherOptions, rootRank=0)), outs

    def scatter(make):
        out = make(3)
        parts = [[make(3, start=10.0 * i) for i in range(size)]] if rank == 1 else []
        return backend.scatter([out], parts, options(c10d.ScatterOptions, rootRank=1)), [out]

    def round_the_ring(make):
        out = make(4)
        work = backend.recv([out], (rank - 1) % size, 5)
        backend.send([make(4)], (rank + 1) % size, 5).wait()
        return work, [out]

    def near_only(*shape, start=0.0):
        return far(*shape, start=start).inner.clone()

    calls = [
        all_reduce, maximum_of_columns, coalesced, broadcast, reduce, all_gather, all_gather_single,
        reduce_scatter, reduce_scatter_single, all_to_all_single, all_to_all, gather, scatter,
        round_the_ring,
    ]
    for call in calls:
        work, expected = call(near_only)
        work.wait()
        work, outs = call(far)
        work.wait()
        for out, judge in zip(outs, expected, strict=True):
            assert torch.equal(near(out), judge), (call.__name__, near(out), judge)
    """
    late(script, 3)


def test_the_caller_goes_on_and_nothing_overtakes_what_waits_for_the_accelerator():
    script = """
    x, y = far(1000), torch.ones(4)
    backend.communicator.records()  # Those since the last call.
    if rank == 0:
        GATE.clear()
    first = backend.allreduce([x], c10d.AllreduceOptions())
    second = backend.allreduce([y], c10d.AllreduceOptions())  # In main memory, ready at once.
    third = backend.barrier(c10d.BarrierOptions())
    if rank == 0:
        assert not first.done and not second.done and not third.done
        assert backend.communicator.records() == []
        GATE.set()
    for work in (third, second, first):
        work.wait()
    assert (y == size).all()
    assert torch.equal(near(x), 2 * torch.arange(1000.0) + 100)
    """
    late(script)


def test_results_are_there_for_the_stream_that_has_waited_and_the_caller_does_not_wait_for_the_copy():
    script = """
    import threading
    x = far(5)
    work = backend.allreduce([x], c10d.AllreduceOptions())
    work.wait()
    before = x.inner.clone()
    assert not torch.equal(before, 2 * torch.arange(5.0) + 100)  # The copy is only noted.

    def other():
        work.wait()
        current().synchronize()  # Behind the copy on the first stream, though nobody has run that.
        found.append(x.inner.clone())

    found = []
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert torch.equal(found[0], 2 * torch.arange(5.0) + 100)
    """
    late(script)


def test_a_future_has_the_results():
    script = """
    x = far(5)
    def twice(future):
        return future.value()[0]
    out = backend.allreduce([x], c10d.AllreduceOptions()).get_future().then(twice).wait()
    assert out is x and torch.equal(near(x), 2 * torch.arange(5.0) + 100)
    """
    late(script)


def test_an_accelerator_that_never_ends_ends_the_wait_at_its_time_limit():
    script = """
    import threading
    opts = c10d.AllreduceOptions()
    opts.timeout = datetime.timedelta(seconds=1)
    x = far(5)
    if rank == 0:
        GATE.clear()
    work = backend.allreduce([x], opts)
    work.get_future()  # A thread waits for it, which ends with the group.
    try:
        work.wait()
    except dist.DistBackendError as error:
        assert isinstance(error, TimeoutError), error
        print(error)
    backend.shutdown()
    assert rank != 0 or not any(thread.name == "openmrc-futures" for thread in threading.enumerate())
    sys.stdout.flush()
    os._exit(0)
    """
    outs = late(script)
    assert outs[0] == "an accelerator has not computed what it sends within 1 s\n"
    assert outs[1]


def test_an_accelerator_that_fails_is_an_exception():
    script = """
    def fail(self):
        raise RuntimeError("an illegal memory access was encountered")
    late_device.Event.synchronize = fail
    work = backend.allreduce([far(5)], c10d.AllreduceOptions())
    for _ in range(2):
        try:
            work.wait()
        except dist.DistBackendError as error:
            print(error)
    """
    told = "the accelerator has failed: an illegal memory access was encountered\n"
    assert late(script) == [2 * told] * 2


def test_a_group_that_is_aborted_ends_what_has_not_begun():
    script = """
    GATE.clear()
    works = [backend.allreduce([far(5)], c10d.AllreduceOptions()) for _ in range(3)]
    backend.abort()
    for work in works:
        try:
            work.wait()
        except dist.DistBackendError as error:
            print(type(error).__name__)
    sys.stdout.flush()
    os._exit(0)
    """
    assert late(script) == [3 * "AbortedError\n"] * 2
