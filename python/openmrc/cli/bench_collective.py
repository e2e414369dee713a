"""``openmrc bench-collective``. Prints; :mod:`openmrc.collectives.bench` measures."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from openmrc.cli import _common, _complete, _values
from openmrc.errors import ArgumentError, Error

_LARGEST = 8 << 30
_LAB_RANKS = 8
_LAB_PORT = 29500


def bench_collective(
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OPERATION",
            help="all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, gather or scatter.",
            autocompletion=_complete.collectives,
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
    loopback: Annotated[
        bool,
        typer.Option(
            "--loopback", help="Start the ranks here, and send over planes on loopback: no shared memory."
        ),
    ] = False,
    lab: Annotated[
        bool,
        typer.Option("--lab", help="Ranks are hosts of a lab: SRv6 switches of the kernel. Needs root."),
    ] = False,
    all_sizes: Annotated[bool, typer.Option("--all", "-a", help="Sizes from 8 bytes to 128 MiB.")] = False,
    begin: Annotated[
        int | None, typer.Option("--minbytes", help="Smallest size. Default 1M.", **_values.size(1, _LARGEST))
    ] = None,
    end: Annotated[
        int | None,
        typer.Option(
            "--maxbytes", "-e", help="Largest size. Default: the smallest.", **_values.size(1, _LARGEST)
        ),
    ] = None,
    factor: Annotated[
        int, typer.Option("--stepfactor", "-f", min=2, help="Each size is this many times the last.")
    ] = 2,
    iterations: Annotated[int, typer.Option("--iters", "-n", min=1, help="Operations of each size.")] = 20,
    warmup: Annotated[
        int, typer.Option("--warmup-iters", "-w", min=0, help="Operations of each size before measuring.")
    ] = 5,
    dtype: Annotated[
        str, typer.Option("--datatype", "-d", metavar="TYPE", help="Data type, by NumPy's name.")
    ] = "float32",
    op: Annotated[
        str,
        typer.Option(
            "--op",
            metavar="OP",
            help="sum, product, min, max, avg, band, bor or bxor.",
            autocompletion=_complete.choices("sum", "product", "min", "max", "avg", "band", "bor", "bxor"),
        ),
    ] = "sum",
    root: Annotated[
        int, typer.Option("--root", "-r", min=0, help="Root rank of broadcast, reduce, gather and scatter.")
    ] = 0,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            metavar="NAME",
            help="ring, halving, doubling, direct, tree or chain. Default by size.",
            autocompletion=_complete.choices("ring", "halving", "doubling", "direct", "tree", "chain"),
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare the results.")] = True,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="gloo",
            help="Measure gloo (PyTorch) too, alternating, in the same processes.",
            autocompletion=_complete.choices("gloo"),
        ),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.png", help="Draw bus bandwidth over size.")
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Measure time and bandwidth of collective operations, as nccl-tests do.

    Starts its ranks itself, or is one of those that torchrun or mpirun has started (RANK, WORLD_SIZE,
    MASTER_ADDR, MASTER_PORT). Sizes are those of the larger buffer of a rank. busbw is what each rank's link
    carries: algbw times 2(n-1)/n for all_reduce, (n-1)/n for all_gather, reduce_scatter and all_to_all. The
    result of the first operation of each size is compared with what it must be; the column wrong counts
    elements. x is gloo's time over ours. Ctrl-C ends the measurement and keeps the sizes that are done.
    """
    from openmrc.collectives import bench
    from openmrc.collectives.bench.measure import numpy
    from openmrc.collectives.rendezvous import Environment

    if all_sizes and (begin is not None or end is not None):
        raise ArgumentError("-a runs its own sizes: leave --minbytes and --maxbytes out, or -a")
    smallest = 8 if all_sizes else (begin or 1 << 20)
    settings = bench.Settings(
        operation=operation.replace("-", "_"),
        begin=smallest,
        end=128 << 20 if all_sizes else (end or smallest),
        factor=factor,
        iterations=iterations,
        warmup=warmup,
        dtype=dtype,
        op=op,
        root=root,
        algorithm=algorithm,
        check=check,
        compare=compare,
    )
    numpy()
    if compare:
        from openmrc.collectives.bench import gloo

        gloo.require()
    if picture:
        from openmrc.cli._simulation import check_outputs

        if picture.suffix not in _PICTURES:
            raise ArgumentError(f"{picture} is no picture: its name ends in {', '.join(_PICTURES)}")
        check_outputs([picture])
    launched = ranks is None and not loopback and not lab and Environment.is_set()
    number = Environment.read().size if launched else (ranks or 2)
    if root >= number:
        raise ArgumentError(f"root {root} does not exist: there are ranks 0 to {number - 1}")
    table = None if json else _Table(settings, number)
    lines: list[Any] = []

    def measured(line: Any) -> None:
        lines.append(line)
        if table is not None:
            table.add(line)

    interrupted = False
    try:
        if launched:
            if not _launched(settings, measured):
                return  # Rank 0 reports.
        else:
            _refuse_too_much(settings, number)
            _spawned(number, settings, measured, loopback=loopback, lab=lab)
    except KeyboardInterrupt:
        interrupted = True
    if json:
        _common.print_json([asdict(line) for line in lines])
    if picture and lines:
        from openmrc.collectives.bench.picture import draw

        way = "lab" if lab else ("loopback planes" if loopback else "this machine")
        draw(lines, f"{settings.operation} of {dtype}, {number} ranks, {way}", picture)
        _common.console(stderr=True).print(f"wrote {picture}")
    if interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)
    ways = [way for line in lines for way in (line.out_of_place, line.in_place, line.gloo) if way is not None]
    if wrong := sum(way.wrong for way in ways):
        raise Error(f"{wrong} elements were wrong")


_BUFFERS = 7.5
"""Buffers of the largest size that a rank has at most, with those of the expected result. Measured with two
ranks: 4 (broadcast) to 7.5 (all_gather)."""


def _refuse_too_much(settings: Any, ranks: int) -> None:
    """Refuses sizes for which the ranks of this machine have no memory, before the kernel ends them."""
    from openmrc.sim.memory import available
    from openmrc.units import size

    needed, there = int(ranks * _BUFFERS * max(settings.sizes)), available()
    if needed > there:
        raise ArgumentError(
            f"{ranks} ranks with buffers of {size(max(settings.sizes))} need about {size(needed)} of memory, "
            f"and {size(there)} are there"
        )


class _Table:
    """The table of nccl-tests, line by line; on a narrow terminal with fewer columns."""

    def __init__(self, settings: Any, ranks: int) -> None:
        self._settings = settings
        self._ranks = ranks
        self._compared = settings.compare is not None
        needed = _WIDE + _GLOO * self._compared
        self._wide = not sys.stdout.isatty() or shutil.get_terminal_size().columns >= needed
        self._empty = True

    def _head(self) -> None:
        settings = self._settings
        ours = (
            f"{'time':>8} {'algbw':>6} {'busbw':>6} {'wrong':>5}"
            if self._wide
            else f"{'time':>8} {'busbw':>6}"
        )
        units = (
            f"{'(us)':>8} {'(GB/s)':>6} {'(GB/s)':>6} {'':>5}" if self._wide else f"{'(us)':>8} {'(GB/s)':>6}"
        )
        first = f"#{'size':>9} {'count':>10} {'type':>8} {'redop':>7}" if self._wide else f"#{'size':>9}"
        second = f"#{'(B)':>9} {'(elem)':>10} {'':>8} {'':>7}" if self._wide else f"#{'(B)':>9}"
        last = "algorithm" if self._wide else "wrong algorithm"
        gloo = (f" {'time':>8} {'busbw':>6} {'x':>5}", f" {'(us)':>8} {'(GB/s)':>6} {'':>5}")
        gloo = gloo if self._compared else ("", "")
        head = "#" + " " * (len(first) - 1)
        above = f"{head} {'out-of-place':>{len(ours)}} {'in-place':>{len(ours)}}"
        print(f"# {settings.operation}, {self._ranks} ranks" + self._about(settings))
        print(above + (f" {'gloo':>{len(gloo[0]) - 1}}" if self._compared else ""))
        print(f"{first} {ours} {ours}{gloo[0]} {last}")
        print(f"{second} {units} {units}{gloo[1]}".rstrip(), flush=True)

    def _about(self, settings: Any) -> str:
        if self._wide:
            return ""
        return f", {settings.dtype}, {settings.op}"

    def add(self, line: Any) -> None:
        """Prints a size."""
        if self._empty:
            self._head()
            self._empty = False
        ways = (line.out_of_place, line.in_place)
        cells = [f"{line.size:10}"]
        if self._wide:
            cells.append(f"{line.count:10} {line.dtype:>8} {line.op:>7}")
        cells += [self._timing(way) for way in ways]
        if self._compared:
            gain = "-" if line.gain is None else f"{line.gain:.2f}"
            cells.append(f"{_us(line.gloo.time_us)} {line.gloo.busbw / 1e9:6.2f} {gain:>5}")
        if not self._wide:
            cells.append(f"{sum(way.wrong for way in ways if way is not None):5}")
        print(*cells, line.algorithm, flush=True)

    def _timing(self, way: Any) -> str:
        if way is None:
            return f"{'-':>8} {'-':>6} {'-':>6} {'-':>5}" if self._wide else f"{'-':>8} {'-':>6}"
        if not self._wide:
            return f"{_us(way.time_us)} {way.busbw / 1e9:6.2f}"
        return f"{_us(way.time_us)} {way.algbw / 1e9:6.2f} {way.busbw / 1e9:6.2f} {way.wrong:5}"


_PICTURES = (".png", ".svg", ".pdf")
_WIDE = 106
"""Width of the table of nccl-tests."""
_GLOO = 22
"""Width of gloo's columns."""


def _us(time_us: float) -> str:
    return f"{time_us:8.2f}" if time_us < 1000 else f"{time_us:8.0f}"


def _launched(settings: Any, measured: Callable[[Any], None]) -> bool:
    """Measures as one of the ranks that others have started; whether this is the one that reports."""
    from openmrc.collectives import Communicator, bench

    with Communicator.from_environment() as comm:
        reports = comm.rank == 0
        bench.run(comm, settings, measured if reports else lambda line: None)
        return reports


def _spawned(
    ranks: int, settings: Any, measured: Callable[[Any], None], *, loopback: bool, lab: bool
) -> None:
    from openmrc.collectives import bench
    from openmrc.collectives.bench.spawn import ended, lines

    with (
        _places(ranks, loopback=loopback, lab=lab) as places,
        ended(bench.spawn(places, settings)) as processes,
    ):
        for line in lines(processes):
            measured(bench.line_from(line))


@contextmanager
def _places(ranks: int, *, loopback: bool, lab: bool) -> Iterator[Any]:
    """Where the ranks run."""
    from openmrc.collectives.bench import Place

    if not lab:
        yield [Place(environment={"OPENMRC_SHARED_MEMORY": "0"} if loopback else {})] * ranks
        return
    if loopback:
        raise ArgumentError("--loopback and --lab exclude each other")
    if ranks > _LAB_RANKS:
        raise ArgumentError(f"the lab has {_LAB_RANKS} hosts: {ranks} ranks are too many")
    from openmrc.demos.lab.run import demo_lab
    from openmrc.demos.lab.scene import RING
    from openmrc.lab import system

    say = _common.console(stderr=True)
    with demo_lab(lambda what: say.print(what, markup=False)) as found:
        hosts = RING[:ranks]
        store = {"MASTER_ADDR": found.addresses(hosts[0])[0], "MASTER_PORT": str(_LAB_PORT)}
        yield [Place(system.inside(found.namespace(host)), store) for host in hosts]
