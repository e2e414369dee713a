"""A thousand agents and one controller: its processor time, memory, and how fast its map is whole again.

The agents are simulated, their HTTP is real: each has a connection and a token of its own and reports as
``openmrc agent`` does. The controller is a process pinned to one processor, the agents run on the others.
Each part measures the controller's own processor time, so that other programs disturb it little.

    python benches/agents.py                    quiet, bursts of 10,000 events a second, killed and started
    python benches/agents.py --agents 200 --quiet 5 --burst 10
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

import processes
from openmrc.control import Token
from openmrc.fabric import Fabric
from openmrc.operate.agent import HEARTBEAT_S, MOST_WAIT_S, PERIOD_S
from openmrc.operate.tokens import agent_token

SECRET = "a-token-of-the-benchmark-0123456789"
PATHS = 64
"""Paths in use of each agent: to two peers, over different planes and T1s."""
LEAST_AGENTS = 97
"""Hosts under four T0s: each has peers under two others."""


def specification(hosts: int) -> str:
    """The fabric's file."""
    return (
        f"name: agents\nhosts: {hosts}\nnic: {{rate: 800G}}\nplanes: 8\nswitch: {{radix: 64}}\n"
        "tiers: 2\nparallel_links: 1\n"
    )


@dataclass(slots=True)
class Agent:
    """A simulated agent."""

    number: int
    paths: list[tuple[int, int, str]]
    """Peer, entropy value, and T1."""
    header: str
    boot: str
    sequence: int = 0
    failures: int = 0
    dead: frozenset[int] = frozenset()
    """Places of the paths that it has last reported as condemned."""
    told: dict[int, int] = field(default_factory=dict)
    """By place: how often a path has changed, as the controller has it."""
    deny_version: int = 0


@dataclass(slots=True)
class Counts:
    """What agents have done."""

    reports: int = 0
    failed: int = 0
    latencies: list[float] = field(default_factory=list)


class Agents:
    """All agents, in one event loop."""

    def __init__(self, fabric: Fabric, number: int, port: int, period_s: float) -> None:
        self.port = port
        self.period_s = period_s
        self.counts = Counts()
        self.failing: frozenset[str] = frozenset()
        """T1s over which nothing passes now."""
        self.flips: Counter[str] = Counter()
        """How often each T1 has failed or come back: so often its paths were condemned or taken back."""
        self.t1s = sorted(str(switch) for switch in fabric.switches() if switch.tier == 1)
        self.changed = asyncio.Condition()
        secret, draw = Token(SECRET), random.Random(1)
        self.agents = [self._agent(fabric, each, secret, draw) for each in range(number)]

    def _agent(self, fabric: Fabric, number: int, secret: Token, draw: random.Random) -> Agent:
        below = fabric.core.hosts_per_t0
        paths: list[tuple[int, int, str]] = []
        for step in (below, 2 * below):
            peer = (number + step) % fabric.hosts
            for path in draw.sample(list(fabric.paths(number, peer)), PATHS // 2):
                paths.append((peer, path.ev, path.hops[1].switch))
        header = (
            "POST /api/v1/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {agent_token(secret, f'h{number}')}\r\n"
        )
        return Agent(number, paths, header, f"{draw.getrandbits(64):016x}")

    def fail(self, failing: frozenset[str]) -> None:
        """From now on nothing passes over these T1s, and something over all others."""
        self.flips.update(failing ^ self.failing)
        self.failing = failing

    def changes(self) -> int:
        """How often paths of all agents were condemned or taken back."""
        return sum(self.flips[t1] for agent in self.agents for *_, t1 in agent.paths)

    def body(self, agent: Agent) -> tuple[bytes, frozenset[int], dict[int, int]]:
        """A report, the paths that it has as condemned, and how often those have changed that are news."""
        agent.sequence += 1
        flips = ((place, self.flips[t1]) for place, (*_, t1) in enumerate(agent.paths))
        news = {place: times for place, times in flips if times != agent.told.get(place, 0)}
        dead = frozenset(n for n, (_, _, t1) in enumerate(agent.paths) if t1 in self.failing)
        rows: dict[str, list[tuple[int, int]]] = {"dead": [], "alive": []}
        for place, (peer, ev, _) in enumerate(agent.paths):
            rows["dead" if place in dead else "alive"].append((peer, ev))
        report = {
            "host": f"h{agent.number}",
            "boot": agent.boot,
            "sequence": agent.sequence,
            "time": time.time(),
            "devices": 8,
            "jobs": ["a-job"],
            "deny_version": agent.deny_version,
            "changes": [(*agent.paths[place][:2], times) for place, times in news.items()],
            **rows,
        }
        return json.dumps(report).encode(), dead, news

    async def run(self, agent: Agent) -> None:
        """Reports until it is cancelled, as the real one: at once what changes, else a heartbeat."""
        await asyncio.sleep(random.uniform(0, self.period_s))
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while True:
            began = time.monotonic()
            wait = self.period_s
            try:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", self.port)
                await self._report(agent, *connection)
                agent.failures = 0
            except (OSError, asyncio.IncompleteReadError, ValueError):
                self.counts.failed += 1
                agent.failures += 1
                longest = min(MOST_WAIT_S, PERIOD_S * 2.0 ** min(agent.failures, 10))
                wait = random.uniform(longest / 2, longest)
                if connection is not None:
                    connection[1].close()
                    connection = None
            await self._wait(agent, began, wait)

    async def _wait(self, agent: Agent, began: float, wait: float) -> None:
        """Until the next report is due: an agent looks each ``PERIOD_S``."""
        while True:
            left = began + wait - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(left, PERIOD_S))
            dead = frozenset(n for n, (_, _, t1) in enumerate(agent.paths) if t1 in self.failing)
            if dead != agent.dead and not agent.failures:
                return

    async def _report(self, agent: Agent, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body, dead, news = self.body(agent)
        began = time.monotonic()
        writer.write(f"{agent.header}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            answer = await reader.readexactly(int(length[1]) if length else 0)
        if not head.startswith(b"HTTP/1.1 200"):
            raise ValueError(answer)
        self.counts.latencies.append(time.monotonic() - began)
        self.counts.reports += 1
        agent.dead = dead
        agent.told |= news
        agent.deny_version = json.loads(answer)["deny_version"]

    async def burst(self, events: float, seconds: float) -> None:
        """T1s fail and come back so that about this many paths a second change their state."""
        share = events * PERIOD_S / (len(self.agents) * PATHS)
        flips = max(2, round(share * len(self.t1s)))
        place, until = 0, time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            self.fail(frozenset(self.t1s[(place + n) % len(self.t1s)] for n in range(flips // 2)))
            place += flips // 2
            await asyncio.sleep(now + PERIOD_S - time.monotonic())
        self.fail(frozenset())


class Controller:
    """The controller's process."""

    def __init__(self, directory: Path, cpu: int, port: int) -> None:
        self.directory, self.cpu, self.port = directory, cpu, port
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "openmrc", "controller", "agents.yaml", "--port", str(self.port)]
        command += ["--token-file", "token", "--database", "agents.db"]
        log = (self.directory / "controller.log").open("ab")
        process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log)
        log.close()
        os.sched_setaffinity(process.pid, {self.cpu})
        return process

    def restart(self) -> float:
        """Kills it and starts it again; when, monotonic seconds."""
        self.process.kill()
        self.process.wait()
        began = time.monotonic()
        self.process = self._start()
        return began

    def cpu_s(self) -> float:
        """Processor time that it has had, seconds."""
        return processes.cpu_s(self.process.pid)

    def memory(self) -> int:
        """Bytes that it has in memory."""
        return processes.memory(self.process.pid)

    async def ask(self, path: str) -> Any:
        """What it answers."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            answer = await http.get(f"http://127.0.0.1:{self.port}{path}")
            return answer.json() if path.startswith("/api") else answer.text


async def until(controller: Controller, ready: Any, patience_s: float) -> float | None:
    """When the controller's status is as wanted, monotonic seconds; ``None``: it was not in time."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if ready(await controller.ask("/api/v1/status")):
                return time.monotonic()
        await asyncio.sleep(0.1)
    return None


async def part(controller: Controller, agents: Agents, seconds: float) -> dict[str, Any]:
    """What the controller does and needs in a time."""
    agents.counts = counts = Counts()
    cpu, began, changes = controller.cpu_s(), time.monotonic(), agents.changes()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    latencies = sorted(counts.latencies) or [0.0]
    found = {
        "seconds": took,
        "core": (controller.cpu_s() - cpu) / took,
        "memory_bytes": controller.memory(),
        "reports_per_s": counts.reports / took,
        "events_per_s": (agents.changes() - changes) / took,
        "failed": counts.failed,
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


async def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """All parts, one after the other."""
    (directory / "agents.yaml").write_text(specification(options.agents))
    secret = directory / "token"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cpus[1:]) or set(cpus))
    agents = Agents(Fabric.load(directory / "agents.yaml"), options.agents, options.port, options.heartbeat)
    controller = Controller(directory, cpus[0], options.port)
    tasks = [asyncio.create_task(agents.run(agent)) for agent in agents.agents]
    found: dict[str, Any] = {"agents": options.agents, "heartbeat_s": options.heartbeat}
    try:
        everyone = await until(controller, lambda s: s["hosts_heard"] == options.agents, 120)
        assert everyone is not None, (directory / "controller.log").read_text()[-2000:]
        await asyncio.sleep(2 * options.heartbeat)
        found["quiet"] = await part(controller, agents, options.quiet)
        # After the bursts a controller that is late may still accuse links that nobody uses.
        known = (await controller.ask("/api/v1/status"))["links"]["unknown"]
        bursting = asyncio.create_task(agents.burst(options.events, options.burst))
        found["burst"] = await part(controller, agents, options.burst)
        await bursting
        # Every agent tells its last state; then none may differ from what the controller has.
        await asyncio.sleep(2 * options.heartbeat + 2)
        hosts = {each["host"]: each for each in await controller.ask("/api/v1/hosts")}
        found["hosts_that_differ"] = sum(
            hosts[f"h{agent.number}"]["dead_paths"] != len(agent.dead) for agent in agents.agents
        )
        metrics = await controller.ask("/metrics")
        found["refused"] = float(re.findall(r'reports_total\{outcome="refused"\} (\S+)', metrics)[0])
        counted = float(re.findall(r"(?m)^openmrc_fabric_path_changes_total (\S+)", metrics)[0])
        found["events"] = agents.changes()
        found["events_lost"] = agents.changes() - counted
        began = controller.restart()
        whole = await until(
            controller,
            lambda s: s["hosts_heard"] == options.agents and s["links"]["unknown"] <= known,
            60,
        )
        found["map_complete_s"] = None if whole is None else whole - began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        controller.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            controller.process.wait(10)
        controller.process.kill()
    return found


def within(kind: Callable[[str], Any], least: float, most: float) -> Callable[[str], Any]:
    """Reads a number in a range."""

    def read(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if least <= (number := kind(text)) <= most:
                return number
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least:g} to {most:g}")

    return read


def main() -> None:
    """Measures and prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    seconds = within(float, 0.1, 86_400)
    parser.add_argument("--agents", type=within(int, LEAST_AGENTS, 2048), default=1000)
    parser.add_argument(
        "--heartbeat", type=within(float, 0.1, 60), default=HEARTBEAT_S, help="seconds between two reports"
    )
    parser.add_argument("--quiet", type=seconds, default=30.0, help="seconds of the quiet part")
    parser.add_argument("--burst", type=seconds, default=60.0, help="seconds of the bursts")
    parser.add_argument(
        "--events", type=within(float, 1, 1e6), default=10_000.0, help="events a second in the bursts"
    )
    parser.add_argument("--port", type=within(int, 1, 65535), default=18600)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with TemporaryDirectory(prefix="openmrc-bench-") as directory:
        found = asyncio.run(measure(options, Path(directory)))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
