"""The measurements of the C interface: perftest, and C programs beside what they are compared with."""

import re
import shutil
import sys
import tempfile
from pathlib import Path

import instruments
from instruments import ROOT, Absent, Bench, Instrument, NotMeasured, Numbers, pick, run, run_json

PORT = 18515
"""Where a server of perftest listens."""
DEVICE = "mrc0=127.1.33.1,127.2.33.1"
SPRAY = ("--planes", "8", "--evs", "128")


def _perftest(tool: str, *arguments: str, timeout: float) -> list[float]:
    """The row of figures that a client of perftest prints; both ends run through ``openmrc run``."""
    instruments.require(tool)
    command = [instruments._openmrc(), "run", *SPRAY, "--", tool, *arguments]
    with instruments._serving(command, str(PORT)):
        output = run([*command, "127.0.0.1"], timeout)
    for line in output.splitlines():
        if re.match(r"^ \d+ +\d+ +[\d.]", line):
            return [float(cell) for cell in line.split()]
    raise NotMeasured(f"{tool} printed no row of figures")


def ib_write_bw() -> Instrument:
    """Debian's ``ib_write_bw``, unmodified, between two local processes: ``gbps`` of goodput."""

    def measure(bench: Bench) -> Numbers:
        # It leaves out a margin at both ends.
        seconds = str(max(2, round(2 * bench.seconds)))
        flags = ("-m", "4096", "-s", str(1 << 20), "-D", seconds, "--report_gbits")
        return {"gbps": _perftest("ib_write_bw", *flags, timeout=2 * float(seconds) + 30)[3]}

    return Instrument("ib_write_bw", "perftest's ib_write_bw over openmrc, 1 MiB writes", measure)


def ib_write_rate(post_list: int) -> Instrument:
    """``ib_write_bw`` with 2-byte writes, posted in chains of ``post_list``: ``pps`` of messages."""

    def measure(bench: Bench) -> Numbers:
        seconds = str(max(2, round(2 * bench.seconds)))
        flags = ("-m", "4096", "-s", "2", "-D", seconds, "-l", str(post_list))
        return {"pps": _perftest("ib_write_bw", *flags, timeout=2 * float(seconds) + 30)[4] * 1e6}

    return Instrument(
        f"ib_write_bw-2-l{post_list}",
        f"perftest's ib_write_bw over openmrc, 2-byte writes in chains of {post_list}",
        measure,
    )


def spin(api: str, looks: int) -> Instrument:
    """Half a round trip of 8 bytes, waited for by spinning on memory: ``p50_us`` and ``p99_us``.

    ``api`` is ``verbs`` or ``mrc``. The end polls after each ``looks`` looks at the memory, with 0 hardly.
    """

    def measure(bench: Bench) -> Numbers:
        with tempfile.TemporaryDirectory() as directory:
            program = _c_program(directory, "spin")
            arguments = [str(program), api, str(bench.iterations), str(looks)]
            output = run(arguments, 120, OPENMRC_DEVICES=DEVICE)
        return {key: _number(output, key) for key in ("p50_us", "p99_us")}

    polls = f"polling after {looks} looks" if looks else "without polling"
    return Instrument(f"spin-{api}-{looks}", f"8 bytes through a flag in memory, {polls} ({api})", measure)


def ib_write_lat(size: int) -> Instrument:
    """Debian's ``ib_write_lat``, unmodified, between two local processes: ``p50_us`` and ``p99_us``."""

    def measure(bench: Bench) -> Numbers:
        row = _perftest("ib_write_lat", "-s", str(size), "-n", str(bench.iterations), timeout=120)
        return {"p50_us": row[4], "p99_us": row[7]}

    return Instrument(f"ib_write_lat-{size}", f"perftest's ib_write_lat over openmrc, {size} bytes", measure)


def _c_program(directory: str, name: str) -> Path:
    """Builds ``benches/c/name.c`` against the library of the wheel."""
    if shutil.which("cc") is None or not Path("/usr/include/infiniband/verbs.h").exists():
        raise Absent("a C compiler or infiniband/verbs.h is not installed")
    openmrc = instruments._openmrc()
    flags = [run([openmrc, "config-c", option], 30).split() for option in ("--cflags", "--libs")]
    target = Path(directory) / name
    source = str(ROOT / f"benches/c/{name}.c")
    run(["cc", "-std=gnu11", "-O2", *flags[0], source, "-o", str(target), *flags[1]], 60)
    return target


def c_writes() -> Instrument:
    """64-byte writes per second through the C interface, in chains of 64: ``pps``."""

    def measure(bench: Bench) -> Numbers:
        with tempfile.TemporaryDirectory() as directory:
            program = _c_program(directory, "writes")
            output = run([str(program), str(bench.seconds)], bench.seconds + 30, OPENMRC_DEVICES=DEVICE)
        return {"pps": _number(output, "pps")}

    return Instrument("c-writes-64", "64-byte writes through the C interface, in chains of 64", measure)


def python_writes() -> Instrument:
    """64-byte writes per second through ``QueuePair.post_writes``, 64 in a call: ``pps``."""

    def measure(bench: Bench) -> Numbers:
        command = [sys.executable, str(ROOT / "benches/post_writes.py"), str(bench.seconds)]
        return {"pps": pick(run_json(command, bench.seconds + 30), "pps")}

    return Instrument("python-writes-64", "64-byte writes through post_writes, 64 in a call", measure)


def post_and_poll() -> Instrument:
    """A post and a poll through C and in Rust, in turns: ``overhead_ns``, ``c_ns`` and ``rust_ns``."""

    def measure(bench: Bench) -> Numbers:
        rust = bench.binary.parent / "examples/post_poll"
        if not rust.exists():
            raise Absent("post_poll is not built (cargo build --release -p openmrc-nic --example post_poll)")
        times: dict[str, list[float]] = {"c": [], "rust": []}
        pinned = ["taskset", "--cpu-list", str(bench.cpus[0])]
        with tempfile.TemporaryDirectory() as directory:
            program = _c_program(directory, "post_poll")
            for _ in range(5):
                for name, path in (("c", program), ("rust", rust)):
                    output = run([*pinned, str(path), "1000000"], 60, OPENMRC_DEVICES=DEVICE)
                    times[name].append(_number(output, "ns"))
        c, rust_ns = (min(times[name]) for name in ("c", "rust"))
        return {"overhead_ns": max(0.0, c - rust_ns), "c_ns": c, "rust_ns": rust_ns}

    return Instrument("post-and-poll", "a post and a poll through C and in Rust, best of five", measure)


def _number(output: str, key: str) -> float:
    found = re.search(rf'"{key}": ([\d.]+)', output)
    if found is None:
        raise NotMeasured(f"no {key} in {output[:80]!r}")
    return float(found[1])
