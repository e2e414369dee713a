"""The measurements behind the benchmark table: each runs one program once and returns its numbers.

An instrument runs a program and reads its numbers; ``figures.py`` compares them. An instrument that
cannot run, or whose program fails, raises :class:`NotMeasured` with the reason. A missing number is
reported, never replaced.
"""

import contextlib
import csv
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dips import longest_dip

Numbers = Mapping[str, float]

ROOT = Path(__file__).resolve().parent.parent


class NotMeasured(Exception):  # noqa: N818 - a result of an instrument, not a mistake
    """An instrument could not run here; the message is the reason."""


class Absent(NotMeasured):
    """The tool of an instrument is not installed."""


@dataclass(frozen=True)
class Bench:
    """Settings of a run."""

    binary: Path
    """The program ``openmrc-bench``."""
    seconds: float
    """How long each throughput measurement lasts."""
    iterations: int
    """Round trips of each latency measurement."""
    cpus: tuple[int, int]
    """The cores of the two sides of a reference measurement."""


@dataclass(frozen=True)
class Instrument:
    """A measurement with a name that figures refer to."""

    name: str
    describe: str
    measure: Callable[[Bench], Numbers]


def run(command: Sequence[str], timeout: float, **environment: str) -> str:
    """Runs a program and returns its standard output.

    Raises:
        Absent: it is not installed.
        NotMeasured: it fails, or takes longer than ``timeout`` seconds.
    """
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise Absent(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise NotMeasured(f"{_short(command)} did not end within {timeout:.0f} s") from None
    if result.returncode:
        last_line = (result.stderr.strip() or result.stdout.strip() or "nothing").splitlines()[-1]
        raise NotMeasured(f"{_short(command)}: {last_line.removeprefix('error: ')}")
    return result.stdout


def _short(command: Sequence[str]) -> str:
    return " ".join([Path(command[0]).name, *command[1:2]])


def run_json(command: Sequence[str], timeout: float) -> dict[str, Any]:
    """Runs a program that prints one JSON object."""
    output = run(command, timeout)
    try:
        value = json.loads(output)
    except ValueError:
        raise NotMeasured(f"{_short(command)} printed no JSON: {output[:80]!r}") from None
    if not isinstance(value, dict):
        raise NotMeasured(f"{_short(command)} printed no JSON object: {output[:80]!r}")
    return value


def pick(result: Mapping[str, Any], *keys: str) -> Any:
    """The value at a path of keys in a program's JSON.

    Raises:
        NotMeasured: the path does not exist.
    """
    value: Any = result
    for key in keys:
        if not isinstance(value, Mapping) or value.get(key) is None:
            raise NotMeasured(f"the result has no {'.'.join(keys)}")
        value = value[key]
    return value


# --- the machine without openmrc ---------------------------------------------------------------------------


def _cpus(bench: Bench) -> str:
    return ",".join(map(str, bench.cpus))


def udp_ceiling(size: int, segments: int = 1, *, delivery: Literal["copy", "none"] = "copy") -> Instrument:
    """One core sending datagrams of ``size`` bytes to another: ``gbps`` and ``pps`` received.

    Args:
        size: Bytes of a datagram.
        segments: Datagrams of a system call, cut and joined by the kernel; 1: no segmentation offload.
        delivery: Whether the receiver copies payloads from a small buffer to the destination.
    """
    offload = ["--segments", str(segments)] if segments > 1 else []
    flags = ["--size", str(size), *offload, "--deliver", delivery]

    def measure(bench: Bench) -> Numbers:
        command = [str(bench.binary), "udp-ceiling", *flags, "--cpus", _cpus(bench)]
        result = run_json([*command, "--seconds", str(bench.seconds)], timeout=bench.seconds + 30)
        return {"gbps": pick(result, "gbps"), "pps": pick(result, "pps")}

    name = f"udp-{'offload' if segments > 1 else 'ceiling'}-{size}{'' if delivery == 'copy' else '-no-copy'}"
    how = f"{segments} a call by segmentation offload, " if segments > 1 else ""
    copies = "one copy" if delivery == "copy" else "no copy"
    return Instrument(
        name, f"plain UDP, {size}-byte datagrams, {how}{copies} by the receiver, one core each side", measure
    )


def udp_pingpong(size: int) -> Instrument:
    """Half the round trip of ``size`` bytes between two polling processes: ``p50_us`` and ``p99_us``."""

    def measure(bench: Bench) -> Numbers:
        command = [str(bench.binary), "udp-pingpong", "--size", str(size), "--cpus", _cpus(bench)]
        result = run_json([*command, "--iterations", str(bench.iterations)], timeout=60)
        return {"p50_us": pick(result, "p50_us"), "p99_us": pick(result, "p99_us")}

    return Instrument(
        f"udp-pingpong-{size}", f"plain UDP ping-pong of {size} bytes, both sides polling", measure
    )


def iperf3_tcp() -> Instrument:
    """One TCP stream of iperf3 over loopback, server and client on a core each: ``gbps`` received."""

    def measure(bench: Bench) -> Numbers:
        return iperf3(bench.seconds, bench.cpus)

    return Instrument("iperf3-tcp", "one iperf3 TCP stream, server and client on a core each", measure)


def iperf3_mptcp(paths: int) -> Instrument:
    """The same over kernel MPTCP with ``paths`` subflows, each from an address of its own."""

    def measure(bench: Bench) -> Numbers:
        for tool in ("iperf3", "mptcpize"):
            require(tool)
        own_namespace = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        script = [sys.executable, str(ROOT / "benches/mptcp.py"), "--paths", str(paths)]
        settings = ["--seconds", str(bench.seconds), "--cpus", _cpus(bench)]
        result = run_json([*own_namespace, *script, *settings], timeout=bench.seconds + 60)
        return {"gbps": pick(result, "gbps")}

    return Instrument(
        f"iperf3-mptcp-{paths}",
        f"one iperf3 stream over kernel MPTCP with {paths} subflow{'s' * (paths > 1)}",
        measure,
    )


def iperf3(
    seconds: float,
    cpus: Sequence[int],
    source: str = "127.0.0.1",
    destination: str = "127.0.0.1",
    prefix: Sequence[str] = (),
) -> Numbers:
    """Runs server and client of iperf3 on a core each: ``gbps`` received.

    ``prefix`` comes before the command of both, such as ``mptcpize run``.
    """
    require("iperf3")
    port = _free_port()
    client, server = (["taskset", "--cpu-list", str(cpu), *prefix, "iperf3", "--port", port] for cpu in cpus)
    with _serving([*server, "--server", "--one-off", "--bind", destination], port):
        command = [*client, "--client", destination, "--bind", source, "--json"]
        result = run_json([*command, "--time", f"{max(1, round(seconds))}"], timeout=seconds + 30)
    if "error" in result:
        raise NotMeasured(f"iperf3: {result['error']}")
    return {"gbps": pick(result, "end", "sum_received", "bits_per_second") / 1e9}


def ucx_bandwidth(size: int, rate: int) -> Instrument:
    """Puts of ``size`` bytes by UCX over TCP: ``gbps`` and ``pps``.

    ``rate`` puts are sent for each second that a measurement lasts, as UCX counts puts and not time.
    """

    def measure(bench: Bench) -> Numbers:
        count = max(100, round(rate * bench.seconds))
        row = _ucx(bench, "ucp_put_bw", "-s", str(size), "-n", str(count), "-w", str(count // 10))
        put_us = float(row["overall_lat"])
        return {"gbps": size * 8 / put_us / 1e3, "pps": 1e6 / put_us}

    return Instrument(
        f"ucx-put-bw-{size}", f"UCX over TCP, puts of {size} bytes, one core each side", measure
    )


def ucx_latency(size: int) -> Instrument:
    """Half the round trip of puts of ``size`` bytes by UCX over TCP: ``p50_us`` and ``p99_us``."""

    def measure(bench: Bench) -> Numbers:
        # One run prints one percentile.
        count = str(max(1, bench.iterations // 2))
        rows = [_ucx(bench, "ucp_put_lat", "-s", str(size), "-n", count, "-R", rank) for rank in ("50", "99")]
        p50, p99 = (
            float(row[f"{rank}_percentile_lat"]) for row, rank in zip(rows, ("50.0", "99.0"), strict=True)
        )
        return {"p50_us": p50, "p99_us": p99}

    return Instrument(f"ucx-put-lat-{size}", f"UCX over TCP, puts of {size} bytes to and fro", measure)


def _ucx(bench: Bench, test: str, *flags: str) -> dict[str, str]:
    """The last row of ``ucx_perftest``, by the names of its columns."""
    require("ucx_perftest")
    port = _free_port()
    client, server = (["taskset", "--cpu-list", str(cpu), "ucx_perftest", "-p", port] for cpu in bench.cpus)
    only_tcp = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
    with _serving(server, port, **only_tcp):
        command = [*client, "127.0.0.1", "-t", test, *flags, "-f", "-v"]
        output = run(command, timeout=20 * bench.seconds + 60, **only_tcp)
    rows = list(csv.DictReader(output.splitlines(), skipinitialspace=True))
    if not rows or None in rows[-1].values():
        raise NotMeasured(f"ucx_perftest printed no table: {output[:80]!r}")
    return rows[-1]


def require(tool: str) -> None:
    """Raises :class:`Absent` unless a program is installed."""
    if shutil.which(tool) is None:
        raise Absent(f"{tool} is not installed")


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@contextlib.contextmanager
def _serving(command: Sequence[str], port: str, **environment: str) -> Iterator[None]:
    """Runs a server that listens on a TCP port."""
    require(command[0])
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        _wait_for_listener(int(port))
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for_listener(port: int) -> None:
    # A connection would count as the one test of a one-off server, so the kernel's table is read instead.
    wanted = f":{port:04X}"
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if local.endswith(wanted) and state == "0A":
                return
        time.sleep(0.01)
    raise NotMeasured("the server did not start to listen")


# --- openmrc -----------------------------------------------------------------------------------------------


def _openmrc() -> str:
    # The command that belongs to this interpreter, not the first one in PATH.
    return str(Path(sys.executable).parent / "openmrc")


def write_bw(name: str, describe: str, *flags: str) -> Instrument:
    """``openmrc write-bw`` between two local processes: ``gbps`` of goodput and ``pps`` of writes.

    ``best_gbps`` is the peak: bytes posted and completed within 10 ms or more.
    """

    def measure(bench: Bench) -> Numbers:
        command = [_openmrc(), "write-bw", "--loopback", "--json", "--duration", str(bench.seconds), *flags]
        result = run_json(command, timeout=bench.seconds + 60)
        return {
            "gbps": pick(result, "goodput_gbps"),
            # With -b the goodput is the sum of both directions, as perftest's.
            "each_way_gbps": pick(result, "goodput_gbps") / (2 if "-b" in flags else 1),
            "pps": pick(result, "messages_per_second"),
            "best_gbps": pick(result, "peak_gbps"),
        }

    return Instrument(name, describe, measure)


def training(ranks: int) -> Instrument:
    """``benches/training.py``: torch.distributed over mrc and gloo in turns, ``NAME_BACKEND_us``."""

    def measure(bench: Bench) -> Numbers:
        python = ROOT / ".venv-torch/bin/python"
        if not python.exists():
            raise Absent("torch is not installed (make test-torch)")
        return run_json([str(python), str(ROOT / "benches/training.py"), str(ranks)], timeout=600)

    return Instrument(
        f"training-{ranks}", f"torch.distributed, {ranks} ranks, mrc and gloo in turns", measure
    )


def checkpoint(name: str, describe: str, **environment: str) -> Instrument:
    """``benches/checkpoint.py``: ``mrc_s`` and ``file_s``, by files that are copied over TCP."""

    def measure(bench: Bench) -> Numbers:
        python = ROOT / ".venv-torch/bin/python"
        if not python.exists():
            raise Absent("torch is not installed (make test-torch)")
        output = run([str(python), str(ROOT / "benches/checkpoint.py")], timeout=300, **environment)
        numbers: Numbers = json.loads(output)
        return numbers

    return Instrument(name, describe, measure)


def kernels() -> Instrument:
    """The reduction kernels in cache, ``slower_gbs`` of float32 and bfloat16, and memory, ``memory_gbs``."""

    def measure(bench: Bench) -> Numbers:
        result = run_json([str(bench.binary.parent / "examples" / "kernels")], timeout=60)
        found = {name: pick(result, name) / 1e9 for name in ("float32", "bfloat16", "memory")}
        return {"slower_gbs": min(found["float32"], found["bfloat16"]), "memory_gbs": found["memory"]}

    return Instrument("kernels", "reduction kernels on 64 KiB, and a copy of 256 MiB, one core", measure)


def silence() -> Instrument:
    """``benches/silence.py``: the longest all_reduce before and after a plane has gone silent."""

    def measure(bench: Bench) -> Numbers:
        return run_json([sys.executable, str(ROOT / "benches/silence.py")], timeout=120)

    return Instrument("all-reduce-silence", "all_reduce of 1 MiB, one plane of eight goes silent", measure)


def collective(name: str, describe: str, *flags: str) -> Instrument:
    """``openmrc bench-collective``: ``busbw_gbps`` of its last size."""

    def measure(bench: Bench) -> Numbers:
        output = run([_openmrc(), "bench-collective", *flags, "--json"], timeout=120)
        try:
            last = json.loads(output)[-1]
        except (ValueError, LookupError):
            raise NotMeasured(f"bench-collective printed no JSON: {output[:80]!r}") from None
        return {"busbw_gbps": pick(last, "in_place", "busbw") * 8 / 1e9}

    return Instrument(name, describe, measure)


def plane_death(name: str, describe: str, *flags: str) -> Instrument:
    """``openmrc write-bw`` while port 3 goes silent halfway: ``dip_ms``, the longest dip.

    A dip is a goodput below 0.8 of the later level with seven planes. ``before_ms`` is the longest dip
    before the fault: pauses of the machine itself. ``beyond_ms`` is by how much the first exceeds the second.
    """

    def measure(bench: Bench) -> Numbers:
        fault = f"3@{bench.seconds / 2}"
        command = [_openmrc(), "write-bw", "--loopback", "--json", "--duration", str(bench.seconds), *flags]
        result = run_json([*command, "--fail-port", fault], timeout=bench.seconds + 60)
        samples = pick(result, "intervals", "bytes")
        length_ms = pick(result, "intervals", "length_ms")
        try:
            fault_ms = bench.seconds / 2 * 1e3
            healthy = samples[: int(fault_ms / length_ms)]
            dip = longest_dip(samples, length_ms, fault_ms, 0.8)
            before = longest_dip(healthy, length_ms, fault_ms / 4, 0.8)
            return {"dip_ms": dip, "before_ms": before, "beyond_ms": max(0.0, dip - before)}
        except ValueError as error:
            raise NotMeasured(str(error)) from None

    return Instrument(name, describe, measure)


def write_lat(size: int) -> Instrument:
    """``openmrc write-lat`` between two local polling processes: ``p50_us`` and ``p99_us``, one way."""

    def measure(bench: Bench) -> Numbers:
        command = [_openmrc(), "write-lat", "--loopback", "--json", "--size", str(size)]
        result = run_json([*command, "--iters", str(bench.iterations)], timeout=60)
        return {"p50_us": pick(result, "p50_us"), "p99_us": pick(result, "p99_us")}

    return Instrument(f"write-lat-{size}", f"openmrc, {size}-byte writes, both sides polling", measure)


def four_hops(size: int) -> Instrument:
    """Three kernel switches of a lab between two hosts: ``mrc_pps`` in SRv6 mode, ``udp_pps`` without."""

    def measure(bench: Bench) -> Numbers:
        if os.geteuid() != 0:
            raise NotMeasured("a lab needs root")
        command = [sys.executable, str(ROOT / "benches/hops.py"), "--bench-binary", str(bench.binary)]
        flags = ["--size", str(size), "--seconds", str(bench.seconds), "--cpus", _cpus(bench)]
        result = run_json([*command, *flags], timeout=2 * bench.seconds + 120)
        return {"mrc_pps": pick(result, "mrc", "pps"), "udp_pps": pick(result, "udp", "pps")}

    return Instrument(
        f"four-hops-{size}", f"MRC with SRv6 and plain UDP over four kernel hops, {size} bytes", measure
    )


def recovery(cuts: int, ports: int) -> Instrument:
    """Links cut and ports lost in a lab: p99 of the times of ``benches/recovery.py``."""

    def measure(bench: Bench) -> Numbers:
        if os.geteuid() != 0:
            raise NotMeasured("a lab needs root")
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "faults.json"
            command = [sys.executable, str(ROOT / "benches/recovery.py"), "--json", str(path)]
            run([*command, "--cuts", str(cuts), "--ports", str(ports)], timeout=5 * (cuts + ports) + 120)
            faults = json.loads(path.read_text())
        names = ("data_ms", "data_beyond_ms", "goodput_ms", "goodput_beyond_ms")
        return {name: _p99([fault[name] for fault in faults]) for name in names}

    return Instrument("recovery", f"{cuts} link cuts and {ports} lost ports in the lab, SRv6 mode", measure)


def _p99(values: Sequence[float]) -> float:
    # Nearest rank: of fewer than a hundred values the greatest.
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def state_per_qp() -> Instrument:
    """``bytes``: the memory of one MRC queue pair, counted by a test of the transport."""

    def measure(bench: Bench) -> Numbers:
        command = ["cargo", "test", "--locked", "--package", "openmrc-transport", "state_per_qp"]
        output = run([*command, "--", "--nocapture"], timeout=900)
        found = re.search(r"state per QP[^\n]*?(\d+) bytes", output, re.IGNORECASE)
        if not found:
            raise NotMeasured("no test of openmrc-transport prints the state per QP")
        return {"bytes": float(found[1])}

    return Instrument("state-per-qp", "transport state of one QP at MPR 8, 128 EVs, both roles", measure)


def simulation(shape: str, describe: str) -> Instrument:
    """A run of the simulator on one core: ``mpps`` of data, ``packet_ns``, ``elapsed_s``, ``memory_MB``."""

    def measure(bench: Bench) -> Numbers:
        program = bench.binary.parent / "examples" / "reach"
        result = run_json([str(program), "--json", shape], timeout=900)
        keys = ("mpps", "packet_ns", "elapsed_s", "memory_MB", "events_per_packet", "hosts")
        return {key: pick(result, key) for key in keys}

    return Instrument(f"sim-{shape}", f"simulator: {describe}", measure)
