"""Buffers of collective operations stay in place until the operations end, whatever programs do to them."""

import pytest

from tests.helpers.ranks import run

pytest.importorskip("numpy")


def test_buffers_of_operations_begun_by_several_threads_live_until_they_end():
    script = """
        import threading, weakref
        THREADS, EACH = 8, 200
        if rank == 0:
            sys.setswitchinterval(1e-6)
            seen, failed = [], []

            def receive(thread):
                try:
                    for i in range(EACH):
                        data = np.zeros(64, np.int64)
                        seen.append(weakref.ref(data))
                        comm.recv(data, 1, tag=thread * EACH + i, async_op=True)
                        comm.waits_for()
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=receive, args=[i]) for i in range(THREADS)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            sys.setswitchinterval(0.005)
            assert not failed, failed
            assert len(seen) == THREADS * EACH
            gone = sum(each() is None for each in seen)
            assert gone == 0, f"{gone} of {len(seen)} buffers were freed"
            arrays = [each() for each in seen]
        comm.barrier()
        if rank == 1:
            for tag in range(THREADS * EACH):
                comm.send(np.full(64, tag), 0, tag=tag)
        comm.barrier()
        if rank == 0:
            # The last of them arrives with or before the message behind it.
            assert sorted(int(array[63]) for array in arrays) == list(range(THREADS * EACH))
            del arrays
            comm.check()
            comm.recv(np.zeros(1), 1, tag=1 << 40)
            assert not any(each() for each in seen), "buffers are kept after their operations"
        else:
            comm.send(np.zeros(1), 0, tag=1 << 40)
    """
    run(script, 2)


@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "network"])
def test_what_would_move_a_buffer_is_refused_until_its_operation_has_ended(shared):
    script = """
        import array, mmap

        def refused(what):
            try:
                what()
            except (ValueError, BufferError):
                return
            raise AssertionError("it was resized")

        N = 1 << 20
        arrays = [np.zeros(N, np.uint8), np.zeros(N, np.uint8)]
        plain, other, mapped = bytearray(N), array.array("B", bytes(N)), mmap.mmap(-1, N)
        moves = [
            (arrays[0], lambda: arrays[0].resize(N * 8, refcheck=False)),
            (arrays[1].reshape(1024, -1)[:512], lambda: arrays[1].resize(N * 8, refcheck=False)),
            (plain, lambda: plain.extend(b"more")),
            (other, lambda: other.extend(b"more")),
            (mapped, mapped.close),
        ]
        for buffer, move in moves:
            if rank == 0:
                work = comm.recv(buffer, 1, async_op=True)
                refused(move)
                comm.barrier()
                work.wait()
                assert bytes(memoryview(buffer).cast("B")[-4:]) == b"data"
            else:
                comm.barrier()
                comm.send(bytes(memoryview(buffer).nbytes - 4) + b"data", 0)
        if rank == 0:
            del moves[:], buffer, work
            arrays[0].resize(N * 8, refcheck=False)
            plain.extend(b"more")
            other.extend(b"more")
            mapped.close()
    """
    run(script, 2, SHARED=shared)


def test_an_operation_that_is_given_up_gives_its_buffers_back():
    script = """
        from openmrc.errors import AbortedError
        data = bytearray(8)
        if rank == 0:
            comm.recv(bytearray(1), 1)  # The other rank has its communicator now.
            work = comm.recv(data, 1, async_op=True)
            comm.close()
            assert work.exception() is not None
        else:
            work = comm.recv(data, 0, async_op=True)
            try:
                comm.send(b"x", 0)
                work.wait()
            except AbortedError:
                pass
        data.extend(b"more")
    """
    run(script, 2)


def test_memory_that_nothing_keeps_in_place_is_refused():
    script = """
        import ctypes
        from openmrc.errors import ArgumentError
        try:
            comm.recv(memoryview((ctypes.c_uint8 * 8)()).cast("B"), 1 - rank, async_op=True)
        except ArgumentError as error:
            assert "can be resized" in str(error), error
        else:
            raise AssertionError("ctypes.resize would free the memory under the operation")
        kept = bytearray(8)
        view = memoryview((ctypes.c_uint8 * 8).from_buffer(kept)).cast("B")
        if rank == 0:
            comm.recv(view, 1)
            assert kept == b"8 bytes."
        else:
            comm.send(b"8 bytes.", 0)
    """
    run(script, 2)


def test_the_core_refuses_buffers_that_are_too_small_for_the_counts():
    script = """
        from openmrc.errors import ArgumentError
        core, data = comm._core, np.zeros(4, np.float32)
        for kind, counts in [("all_reduce", [5]), ("all_gather", [4, 1]), ("broadcast", [1 << 62]),
                             ("reduce_scatter", [1 << 63, 1 << 63]), ("scatter", [1 << 61])]:
            try:
                core.call(kind, counts, rank, "float32", "sum", None, data, data, None, 1.0)
            except ArgumentError as error:
                assert "needs" in str(error) or "is longer than" in str(error), error
            else:
                raise AssertionError(f"{kind} of {counts} began with four elements")
    """
    run(script, 2)
