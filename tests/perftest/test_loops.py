"""The measuring loops of the compiled module: what they count, and what they write."""

import contextlib
import ctypes
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.verbs import QpCap
from tests.helpers.ends import connected

MEMORY = 1 << 20


@dataclass
class Memory:
    """Registered memory and a view of its bytes."""

    core: _core.PerfBuffer
    bytes: np.ndarray

    @property
    def target(self):
        return (self.core.addr, self.core.length, self.core.rkey)


def memory(end, length):
    core = _core.PerfBuffer(end.pd._core, length)
    return Memory(core, np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(core.addr)))


@contextlib.contextmanager
def ends(planes, length):
    """Two connected ends, each with a source and an inbox."""
    with connected(planes, cap=QpCap(max_send_wr=128, max_inline_data=256)) as pair:
        yield [(end, memory(end, length), memory(end, length)) for end in pair]


def write_bw(end, source, inbox, size, *, polling=True, inline=False):
    return _core.write_bw(
        end.context._core,
        [end.qp._core],
        end.send_cq._core,
        source.core,
        inbox.target,
        _core.PerfControl(),
        size=size,
        iterations=777,
        duration=None,
        depth=128,
        post_list=16,
        signal_every=16,
        inline=inline,
        polling=polling,
        bucket=0.001,
    )


@pytest.mark.parametrize(
    ("size", "polling", "inline"), [(65_536, True, False), (5000, False, False), (64, True, True)]
)
def test_the_bandwidth_loop_counts_what_arrives(size, polling, inline):
    with ends(4, MEMORY) as [(a, source, _), (_, _, inbox)]:
        source.bytes[:] = np.random.default_rng(77).integers(0, 256, MEMORY, dtype=np.uint8)
        result = write_bw(a, source, inbox, size, polling=polling, inline=inline)
        assert (result["messages"], result["bytes"]) == (777, 777 * size)
        assert sum(result["buckets"]) == result["bytes"]
        assert result["elapsed_ns"] > 0
        if inline:  # The same bytes everywhere.
            assert (inbox.bytes[: 777 * size].reshape(777, size) == source.bytes[:size]).all()
        else:
            assert (inbox.bytes[:1_000_000] == source.bytes[:1_000_000]).all()


def test_a_message_longer_than_the_memory_is_refused():
    with ends(2, MEMORY) as [(a, source, _), (_, _, inbox)], pytest.raises(ArgumentError, match="do not fit"):
        write_bw(a, source, inbox, 2 * MEMORY)


@pytest.mark.parametrize("size", [2, 5000])
def test_the_latency_loop_runs_every_round_at_both_sides(size):
    with ends(2, 8192) as [a, b]:
        for _, _, inbox in (a, b):
            inbox.core.clear()
        samples = {}

        def run(client, mine, theirs):
            (end, source, inbox), (_, _, target) = mine, theirs
            samples[client] = _core.write_lat(
                end.context._core,
                end.qp._core,
                end.send_cq._core,
                source.core,
                inbox.core,
                target.target,
                _core.PerfControl(),
                client=client,
                size=size,
                iterations=300,
                warmup=20,
                inline=size == 2,
            )

        sides = [threading.Thread(target=run, args=args) for args in ((True, a, b), (False, b, a))]
        for side in sides:
            side.start()
        for side in sides:
            side.join()
        assert len(samples[True]) == 300
        assert min(samples[True]) > 0
        assert samples[False] == []
