"""What users of gloo expect of works, groups, reductions and errors. `make test-torch` has torch."""

import pytest

from tests.helpers.torch_ranks import run, start

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")


def test_a_callback_may_begin_an_operation_and_wait_for_it():
    # A group for each chain: within a group, all ranks have to begin operations in the same order, and
    # callbacks of several chains run in any order.
    script = """
        def chain(group):
            def second(future):
                x = future.value()[0]
                return dist.all_reduce(x, group=group, async_op=True).get_future().then(third).wait()

            def third(future):
                x = future.value()[0]
                dist.all_reduce(x, group=group)
                return x

            return dist.all_reduce(torch.ones(50_000), group=group, async_op=True).get_future().then(second)

        futures = [chain(group) for group in [dist.new_group() for _ in range(4)]]
        for future in futures:
            assert (future.wait() == size**3).all()
    """
    run(script, 2)


@pytest.mark.parametrize("hook", ["powerSGD_hook", "batched_powerSGD_hook"])
def test_powersgd_trains(hook):
    script = """
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
        if os.environ["HOOK"] == "batched_powerSGD_hook":
            # Torch 2.15 calls this for batches with one matrix, which it refuses, with every backend.
            original = power._orthogonalize
            power._orthogonalize = lambda matrix, epsilon=0: original(matrix.unsqueeze(0), epsilon)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)))
        state = power.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, getattr(power, os.environ["HOOK"]))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(8, 64) + rank).pow(2).mean().backward()
            optimizer.step()
        for parameter in model.parameters():
            others = [torch.empty_like(parameter) for _ in range(size)]
            dist.all_gather(others, parameter.detach())
            assert torch.equal(others[0], others[-1])
    """
    run(script, 2, HOOK=hook)


def test_the_builtin_hook_for_float16():
    script = """
        from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType
        kind = dist.BuiltinCommHookType.FP16_COMPRESS
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
        model._register_builtin_comm_hook(kind)
        model(torch.full((2, 8), float(rank))).sum().backward()
        mean = sum(2.0 * r for r in range(size)) / size
        assert (model.module.weight.grad == mean).all()
    """
    run(script, 2)


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_debug_modes(level):
    script = """
        x = torch.ones(3)
        dist.all_reduce(x); dist.broadcast(x, 0); dist.barrier()
        assert (x == size).all()
        objects = [None] * size; dist.all_gather_object(objects, rank); assert objects == [0, 1]
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
        model(torch.ones(1, 4)).sum().backward()
    """
    run(script, 2, TORCH_DISTRIBUTED_DEBUG=level)


def test_the_detail_mode_names_shapes_that_differ():
    script = """
        try:
            dist.all_reduce(torch.ones(3 + rank))
        except RuntimeError as error:
            print(error)
        os._exit(0)
    """
    processes = start(script, 2, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    outs = [process.communicate(timeout=100)[0] for process in processes]
    assert all("mismatch" in out.lower() for out in outs), outs


def test_a_work_says_whether_it_has_ended():
    script = """
        x = torch.zeros(4)
        if rank == 0:
            work = dist.irecv(x, 1)
            assert not work.is_completed()
            dist.barrier()
            while not work.is_completed():
                pass
            assert work.is_success() and (x == 1).all()
            work.wait()
        else:
            dist.barrier()
            dist.isend(torch.ones(4), 0).wait()
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        assert work.is_completed()
    """
    run(script, 2)


def test_a_receive_from_any_rank_says_who_has_sent():
    script = """
        if rank == 0:
            seen = set()
            for _ in range(size - 1):
                x = torch.empty(2)
                source = dist.recv(x)
                assert (x == source).all()
                seen.add(source)
            assert seen == {1, 2}
        else:
            dist.send(torch.full((2,), float(rank)), 0)
    """
    run(script, 3)


def test_a_group_is_split():
    script = """
        part = dist.split_group(split_ranks=[[0, 1], [2, 3]])
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=part)
        assert x == (1 if rank < 2 else 5)
        backend = part._get_backend(torch.device("cpu"))
        assert backend.communicator.members == ((0, 1) if rank < 2 else (2, 3))
    """
    run(script, 4)


@pytest.mark.parametrize("backend", ["gloo", "mrc"])
def test_a_split_leaves_ranks_out_orders_them_and_takes_a_timeout(backend):
    script = """
        def members(part):
            if part is dist.GroupMember.NON_GROUP_MEMBER:
                return None
            x = torch.tensor([10.0**rank]); dist.all_reduce(x, group=part)
            ranks = dist.get_process_group_ranks(part)
            assert x == sum(10.0**each for each in ranks) and ranks[dist.get_rank(part)] == rank
            return ranks

        assert members(dist.split_group(split_ranks=[[1, 2]])) == ([1, 2] if rank in (1, 2) else None)
        half = dist.split_group(split_ranks=[[3, 0], [2, 1]], group_desc="half", backend=dist.get_backend(),
                                timeout=datetime.timedelta(seconds=50))
        assert members(half) == ([3, 0] if rank in (3, 0) else [2, 1]) and half.group_desc == "half"
        options = half._get_backend(torch.device("cpu")).options
        assert options._timeout == datetime.timedelta(seconds=50)
        assert members(dist.split_group(half, [[1]])) == ([rank] if rank in (0, 1) else None)
        for wrong, word in ([], "empty"), ([[0, 0]], "duplicate"), ([[0, 1, 2, 3, 4]], "size"):
            try:
                dist.split_group(split_ranks=wrong)
            except ValueError as error:
                assert word in str(error)
            else:
                raise AssertionError(word)
        dist.barrier()
    """
    run(script, 4, BACKEND=backend)


def test_a_timeout_that_is_set_later_counts():
    script = """
        from torch.distributed.distributed_c10d import _set_pg_timeout
        _set_pg_timeout(datetime.timedelta(seconds=1), dist.group.WORLD)
        if rank == 0:
            try:
                dist.barrier()
            except dist.DistBackendError as error:
                assert isinstance(error, TimeoutError), error
                print("after 1 s" if "1.0s" in str(error) else error)
        else:
            sys.stdin.read()
        os._exit(0)
    """
    processes = start(script.replace("sys.stdin.read()", "signal.pause()"), 2)
    out, _ = processes[0].communicate(timeout=100)
    processes[1].kill()
    processes[1].communicate()
    assert out == "after 1 s\n"


def test_every_operation_without_the_others_ends_at_its_time_limit():
    script = """
        half = datetime.timedelta(seconds=0.5)
        x, y = torch.ones(4), torch.ones(8)
        calls = {
            "all_reduce": lambda g: dist.all_reduce(x, group=g),
            "large all_reduce": lambda g: dist.all_reduce(torch.ones(1_000_000), group=g),
            "broadcast to it": lambda g: dist.broadcast(x, 1, group=g),
            "reduce": lambda g: dist.reduce(x, 0, group=g),
            "all_gather": lambda g: dist.all_gather_into_tensor(y, x, group=g),
            "reduce_scatter": lambda g: dist.reduce_scatter_tensor(x, y, group=g),
            "all_to_all": lambda g: dist.all_to_all_single(y, y.clone(), group=g),
            "gather": lambda g: dist.gather(x, [x.clone(), x.clone()], group=g),
            "scatter": lambda g: dist.scatter(x, None, 1, group=g),
            "barrier": lambda g: dist.barrier(group=g),
            "recv": lambda g: dist.recv(x, 1, group=g),
            "recv from any": lambda g: dist.recv(x, group=g),
            "send": lambda g: dist.send(torch.ones(1_000_000), 1, group=g),
            "future": lambda g: dist.all_reduce(x, group=g, async_op=True).get_future().wait(),
            "objects": lambda g: dist.all_gather_object([None, None], {"a": 1}, group=g),
            "wait": lambda g: dist.all_reduce(x, group=g, async_op=True).wait(half / 2),
        }
        groups = {name: dist.new_group(timeout=half) for name in calls}
        dist.barrier()
        if rank == 1:
            signal.pause()
        for name, call in calls.items():
            try:
                call(groups[name])
            except TimeoutError:
                print(name)
            except RuntimeError as error:  # Torch makes one of every error of a future.
                print(name if "DeadlineError" in str(error) else repr(error))
        os._exit(0)
    """
    processes = start(script, 2)
    out, err = processes[0].communicate(timeout=200)
    processes[1].kill()
    processes[1].communicate()
    assert out.splitlines() == [
        line.split('"')[1] for line in script.splitlines() if '": lambda g: ' in line
    ], err


def test_joined_operations_share_the_time_of_a_wait():
    script = """
        import time
        from openmrc.torch.work import Pending
        class Slow:
            given = []
            def wait(self, timeout):
                self.given.append(timeout)
                time.sleep(0.01)
        Pending([Slow() for _ in range(5)], [], None).wait(0.03)
        print(all(a > b or b == 0 for a, b in zip(Slow.given, Slow.given[1:])), Slow.given[0] <= 0.03)
    """
    assert run(script, 1) == ["True True\n"]


def test_reductions_and_types_beyond_gloo():
    script = """
        x = torch.full((3,), float(rank + 1))
        dist.all_reduce(x, dist._make_nccl_premul_sum(0.5)); assert (x == 1.5).all()
        for dtype in (torch.uint16, torch.uint32, torch.uint64):
            x = torch.tensor([rank + 1, 7], dtype=dtype)
            dist.all_reduce(x)
            assert x.tolist() == [3, 14], dtype
            dist.all_reduce(x, dist.ReduceOp.MAX)
        for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
            dtype = getattr(torch, name)
            bits = torch.arange(16, dtype=torch.uint8) + 16 * rank
            x = bits.view(dtype)
            dist.broadcast(x, 1)
            assert x.view(torch.uint8).tolist() == list(range(16, 32))
            every = [torch.empty(16, dtype=dtype) for _ in range(size)]
            dist.all_gather(every, bits.view(dtype))
            assert every[1].view(torch.uint8).tolist() == list(range(16, 32))
            try:
                dist.all_reduce(x)
            except ValueError as error:
                assert name in str(error)
            else:
                raise AssertionError("a type without arithmetic here was reduced")
    """
    run(script, 2)


def test_sparse_tensors_are_summed():
    script = """
        for dtype in (torch.float64, torch.bfloat16, torch.int32):
            dense = torch.zeros(5, 4, 2, dtype=dtype)
            if rank < 2:  # The third has no values at all.
                dense[rank : rank + 2, 1] = rank + 1
            x = dense.to_sparse(2)
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            assert work.is_completed() and x.sparse_dim() == 2
            dist.all_reduce(dense)
            assert torch.equal(x.to_dense(), dense)
        layer = nn.Embedding(10, 3, sparse=True)
        model = nn.parallel.DistributedDataParallel(layer)
        model(torch.tensor([rank, 5])).sum().backward()
        mean = torch.zeros(10, 3); mean[:3] = 1 / 3; mean[5] = 1
        assert torch.allclose(layer.weight.grad.to_dense(), mean)
    """
    run(script, 3)


def test_tensors_of_different_types_are_named():
    script = """
        if rank == 0:
            dist.send(torch.ones(4), 1)
        else:
            try:
                dist.recv(torch.empty(4, dtype=torch.int32), 0)
            except dist.DistBackendError as error:
                assert "float32" in str(error) and "int32" in str(error)
                print("named")
    """
    assert run(script, 2)[1] == "named\n"


def test_errors_are_those_of_torch_and_ours():
    script = """
        from openmrc.errors import AbortedError, Error, MismatchError
        try:
            dist.broadcast(torch.ones(1_000_000), rank)
            dist.barrier()
        except dist.DistBackendError as error:
            assert isinstance(error, (MismatchError, AbortedError)), error
            print("torch's")
        work = dist.all_reduce(torch.ones(3), async_op=True)
        try:
            work.wait()
        except RuntimeError as error:
            assert isinstance(error, Error)
        else:
            raise AssertionError("a group that has failed went on")
    """
    assert run(script, 2) == ["torch's\n"] * 2
