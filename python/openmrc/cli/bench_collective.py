"""``openmrc bench-collective``. Prints; :mod:`openmrc.collectives.bench` measures."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from openmrc.cli import _common, _values
from openmrc.errors import ArgumentError, Error

_LARGEST = 8 << 30
# fmt: off
_HEAD = """\
#                                             out-of-place                      in-place
#     size      count     type redop     time  algbw  busbw wrong     time  algbw  busbw wrong algorithm
#      (B)     (elem)                    (us) (GB/s) (GB/s)           (us) (GB/s) (GB/s)"""
# fmt: on


def bench_collective(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OPERATION",
            help="all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, gather or scatter.",
        ),
    ],
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            max=256,
            help="Start this number of ranks on this machine. Default 2, or what torchrun or mpirun says.",
        ),
    ] = None,
    all_sizes: Annotated[bool, typer.Option("--all", "-a", help="Sizes from 8 bytes to 128 MiB.")] = False,
    begin: Annotated[int, typer.Option("--minbytes", help="Smallest size.", **_values.size(1, _LARGEST))] = 1
    << 20,
    end: Annotated[
        int | None,
        typer.Option(
            "--maxbytes", "-e", help="Largest size. Default: the smallest.", **_values.size(1, _LARGEST)
        ),
    ] = None,
    factor: Annotated[int, typer.Option("--stepfactor", "-f", min=2, help="From a size to the next.")] = 2,
    iterations: Annotated[int, typer.Option("--iters", "-n", min=1, help="Operations of each size.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup-iters", "-w", min=0, help="Operations before those.")] = 5,
    dtype: Annotated[str, typer.Option("--datatype", "-d", metavar="TYPE", help="NumPy's name.")] = "float32",
    op: Annotated[
        str, typer.Option("--op", metavar="OP", help="sum, product, min, max, avg, band, bor or bxor.")
    ] = "sum",
    root: Annotated[int, typer.Option("--root", "-r", min=0, help="Root of those that have one.")] = 0,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm", metavar="NAME", help="ring, halving, direct, tree or chain. Default by size."
        ),
    ] = None,
    network: Annotated[
        bool, typer.Option("--network", help="No shared memory: everything over planes on loopback.")
    ] = False,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare the results.")] = True,
    json: _common.JsonOption = False,
) -> None:
    """Time and bandwidth of collective operations, as nccl-tests measure them.

    Starts its ranks itself, or is one of those that torchrun or mpirun has started (RANK, WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT). Sizes are those of the larger buffer of a rank. busbw is what each rank's link
    carries: algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all. The
    result of the first operation of each size is compared with what it must be; #wrong counts its elements.
    """
    from openmrc.collectives import bench

    smallest = 8 if all_sizes else begin
    settings = bench.Settings(
        operation.replace("-", "_"),
        smallest,
        128 << 20 if all_sizes else (end or smallest),
        factor,
        iterations,
        warmup,
        dtype,
        op,
        root,
        algorithm,
        shared_memory=not network,
        check=check,
    )
    launched = ranks is None and "WORLD_SIZE" in os.environ
    lines = _launched(settings) if launched else _spawned(ranks or 2, settings)
    if json:
        _common.print_json([asdict(line) for line in lines])
        return
    first = True
    wrong = 0
    for line in lines:
        if first:
            print(_HEAD)
            first = False
        ways = (line.out_of_place, line.in_place)
        wrong += sum(way.wrong for way in ways if way is not None)
        print(f"{line.size:10} {line.count:10} {line.dtype:>8} {line.op:>5} "
              + " ".join(_timing(way) for way in ways) + f" {line.algorithm}", flush=True)  # fmt: skip
    if wrong:
        raise Error(f"{wrong} elements were wrong")


def _timing(way: Any) -> str:
    if way is None:
        return f"{'-':>8} {'-':>6} {'-':>6} {'-':>5}"
    return f"{way.time_us:8.1f} {way.algbw / 1e9:6.3f} {way.busbw / 1e9:6.3f} {way.wrong:5}"


def _launched(settings: Any) -> Iterator[Any]:
    from openmrc.collectives import Communicator, bench
    from openmrc.collectives.rendezvous import Tuned

    with Communicator.from_environment(tuned=Tuned(shared_memory=settings.shared_memory)) as comm:
        lines = bench.run(comm, settings, lambda line: None)
        yield from lines if comm.rank == 0 else ()


def _spawned(ranks: int, settings: Any) -> Iterator[Any]:
    from openmrc.collectives import bench

    if settings.root >= ranks:
        raise ArgumentError(f"root {settings.root} does not exist: there are ranks 0 to {ranks - 1}")
    with _ended(bench.spawn(ranks, settings)) as processes:
        for text in processes[0].stdout or ():
            yield bench.line_from(text)
        codes = [process.wait() for process in processes]
    if any(codes):
        raise Error(f"rank {next(r for r, code in enumerate(codes) if code)} failed")


@contextmanager
def _ended(processes: "list[subprocess.Popen[str]]") -> Iterator["list[subprocess.Popen[str]]"]:
    """Ends all processes if one of them, or this one, ends early."""
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        sys.stdout.flush()
