"""Arrays of every type and shape, as NumPy's users have them."""

from tests.helpers.ranks import run


def test_complex_numbers_are_added_and_averaged():
    script = """
        for dtype in (np.complex64, np.complex128):
            x = np.array([1 + 2j, 3j, -1]).astype(dtype) * (rank + 1)
            y = np.empty_like(x)
            comm.all_reduce(x, y)
            assert (y == np.array([1 + 2j, 3j, -1]) * 3).all()
            comm.all_reduce(x, y, op="avg", factor=None)
            assert (y == np.array([1 + 2j, 3j, -1]) * 1.5).all()
            parts = np.empty(3, dtype)
            comm.all_gather(x[: rank + 1].copy(), parts, counts=[1, 2])
            assert (parts == np.array([1 + 2j, 2 + 4j, 6j])).all()
            part = np.empty(1 + rank, dtype)
            comm.reduce_scatter(parts, part, counts=[1, 2])
            assert (part == 2 * (parts[:1] if rank == 0 else parts[1:])).all()
    """
    run(script, 2)


def test_arrays_that_are_not_contiguous_are_packed():
    script = """
        whole = np.zeros((6, 4))
        x = whole[::2, 1:3]
        x[...] = rank + 1
        comm.all_reduce(x)
        assert (x == 3).all() and whole.sum() == 3 * x.size
        columns = np.asfortranarray(np.arange(6.0).reshape(2, 3) * (rank == 0))
        comm.broadcast(columns, 0)
        assert (columns == np.arange(6.0).reshape(2, 3)).all() and columns.flags.f_contiguous
        reverse = np.arange(3)[::-1]
        out = np.zeros(6, int)[::-1]
        work = comm.all_gather(reverse, out, async_op=True)
        while not work.done:
            pass
        assert out.tolist() == [2, 1, 0, 2, 1, 0]
        if rank == 0:
            comm.send(whole[:, 1], 1)
        else:
            got = np.zeros((6, 2))
            comm.recv(got[:, 1], 0)
            assert (got[:, 1] == whole[:, 1]).all() and not got[:, 0].any()
    """
    run(script, 2)


def test_the_names_of_numpy_and_types_that_are_only_moved():
    script = """
        x = np.array([2, 3], np.uint32) + np.uint32(rank)
        comm.all_reduce(x, op="prod")
        assert x.tolist() == [6, 12]
        days = np.array(["2026-01-01", "2026-07-0" + str(rank + 1)], "M8[D]")
        comm.broadcast(days, 1)
        assert str(days[1]) == "2026-07-02"
        points = np.zeros(2, [("x", "f4"), ("name", "S3")])
        points[rank] = (rank, b"abc")
        every = np.zeros(4, points.dtype)
        comm.all_gather(points, every)
        assert every["name"].tolist() == [b"abc", b"", b"", b"abc"]
    """
    run(script, 2)
