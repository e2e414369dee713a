"""Faults in the demo's lab under a real controller and agent: what was named when, rightly or wrongly."""

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from openmrc.collectives.bench.spawn import ended, last_words
from openmrc.control import Token
from openmrc.demos.director import Fault
from openmrc.demos.lab.analysis import too_busy
from openmrc.demos.lab.director import LabDirector, Log
from openmrc.demos.lab.ring import Ring
from openmrc.demos.lab.run import demo_lab
from openmrc.demos.lab.scene import RING, schedule
from openmrc.errors import DeviceError
from openmrc.files import write_text
from openmrc.lab import Lab
from openmrc.localise import Component, Kind
from openmrc.observe import publish
from openmrc.operate.client import Client
from openmrc.operate.probing import RATE
from openmrc.operate.score import Injected, Score, score
from openmrc.operate.tokens import agent_token

_START_S = 60.0
"""Until controller and agent have started, on a busy machine."""
_REPAIR_S = 20.0
"""Until a fault is over for the controller, once it is repaired."""
_SETTLE_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """What a run has found."""

    score: Score
    pieces: int
    """Writes that arrived while all of it happened."""
    wrong: int
    """Of these, with wrong data."""
    too_busy: str | None
    """Why the times mean little, if the machine had no time."""


class Operation(NamedTuple):
    """A lab under traffic and a controller."""

    lab: Lab
    ring: Ring
    client: Client


@contextlib.contextmanager
def operation(
    rate_bps: float, log: Log, *, srv6: bool = False, probe_rate: int = RATE, agents: int = 1
) -> Iterator[Operation]:
    """Brings up lab, traffic, controller and agents, and takes all of it down.

    Args:
        rate_bps: What each host offers.
        log: Called with each thing that happens; first of all with the page's address.
        srv6: Whether the NICs build SRv6 frames themselves.
        probe_rate: Probes a second of each host; 0: none.
        agents: Processes that the hosts share as their agents.

    Raises:
        PrivilegeError: without root.
        StateError: if a demo runs already.
        DeviceError: if the controller or an agent does not start.
        Error: if a queue pair broke.
    """
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="openmrc-operate-")))
        lab = stack.enter_context(demo_lab(log))
        stack.enter_context(_observed_in(scratch / "observed"))
        ring = stack.enter_context(Ring(lab, rate_bps, srv6=srv6))
        for context in ring.contexts.values():
            stack.enter_context(publish(context))
        ring.start()
        client = stack.enter_context(_controlled(lab, scratch, probe_rate, agents, log))
        director = _Director(lab, ring, log)
        director.wait_for(lambda: client.status().hosts_heard == len(RING), _START_S)
        # The first reports may come between the start of the ring and its first writes.
        director.wait_for(lambda: client.status().links["good"] > 0 and not client.faults(), _REPAIR_S)
        yield Operation(lab, ring, client)


def run(
    duration_s: float,
    rate_bps: float,
    log: Log,
    *,
    srv6: bool = False,
    faults: Sequence[Fault] = (),
    probe_rate: int = RATE,
    agents: int = 1,
) -> Outcome:
    """Goes through faults in a lab under a controller.

    Args:
        duration_s: Of all faults together; one that is named ends earlier.
        rate_bps: What each host offers.
        log: Called with each thing that happens; first of all with the page's address.
        srv6: Whether the NICs build SRv6 frames themselves.
        faults: Those of the demo if there are none.
        probe_rate: Probes a second of each host.
        agents: Processes that the hosts share as their agents.

    Raises:
        Error: as :func:`operation`.
    """
    with operation(rate_bps, log, srv6=srv6, probe_rate=probe_rate, agents=agents) as (lab, ring, client):
        director = _Director(lab, ring, log)
        faults = faults or schedule(duration_s)
        most_s = duration_s / len(faults)
        injected = [_go_through(director, fault, most_s, client, log) for fault in faults]
        named = [*client.faults(over=True), *client.faults()]
        recording = ring.stop()
        busy = too_busy(recording)
        return Outcome(score(injected, named), recording.pieces, recording.wrong, busy)


def component_of(lab: Lab, fault: Fault) -> Component:
    """What the controller should name."""
    if fault.kind == "switch":
        return Component(Kind.SWITCH, fault.what)
    return Component(Kind.LINK, lab.layout.link(fault.what).name)


class _Director(LabDirector):
    tick_s = 0.1


def _go_through(director: _Director, fault: Fault, most_s: float, client: Client, log: Log) -> Injected:
    """Makes a fault, waits until it is named, repairs it, and waits until it is over."""
    lab = director.lab
    component = component_of(lab, fault)
    with lab.ready_to_fail(fault.what, loss=fault.loss, direction=fault.direction) as fail:
        began = time.time()
        fail()
    log(f"{fault.title}: {component.name}")

    def named() -> bool:
        return any(
            each.kind != "unknown" and Component(Kind(each.kind), each.name).part == component.part
            for each in client.faults()
        )

    found = director.wait_for(named, most_s)
    log(f"{component} is named" if found else f"not named within {most_s:g} s")
    # Other names may follow: they count too.
    director.wait_for(lambda: False, _SETTLE_S)
    lab.repair(fault.what)
    ended = time.time()
    over = director.wait_for(lambda: not client.faults(), _REPAIR_S)
    log(f"{fault.what} repaired{'' if over else f'; faults were open {_REPAIR_S:g} s later'}")
    return Injected(component, fault.loss or 1.0, began, ended, fault.title)


@contextlib.contextmanager
def _observed_in(directory: Path) -> Iterator[None]:
    """Devices are published where no other lab's agent looks: labs have the same addresses."""
    name = "OPENMRC_OBSERVE_DIR"
    before = os.environ.get(name)
    os.environ[name] = str(directory)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _controlled(lab: Lab, scratch: Path, probe_rate: int, agents: int, log: Log) -> Iterator[Client]:
    """A controller, and agents that share the hosts, as processes."""
    secret = secrets.token_hex(16)
    operators = scratch / "operators.token"
    write_text(operators, secret, permissions=0o600)
    tokens = []
    for number in range(agents):
        lines = [f"{host} {agent_token(Token(secret), host)}\n" for host in RING[number::agents]]
        tokens.append(scratch / f"agent-{number}.tokens")
        write_text(tokens[-1], "".join(lines), permissions=0o600)
    database = ("--database", scratch / "demo.db")
    file = lab.state.directory / "fabric.yaml"
    line = ("controller", file, "--port", 0, "--token-file", operators, *database)
    with _process(*line) as (controller, errors):
        assert controller.stdout is not None
        address = controller.stdout.readline().decode().strip()
        if not address:
            raise DeviceError(f"the controller did not start: {last_words(errors)}")
        log(f"page: {address}#token={secret}")
        with contextlib.ExitStack() as stack:
            options = ("--probe-rate", probe_rate)
            running = [
                stack.enter_context(_process("agent", address, "--token-file", each, *options))
                for each in tokens
            ]
            yield stack.enter_context(Client(address, bearer=secret))
            for agent, complaints in running:
                if agent.poll() is not None:
                    raise DeviceError(f"the agent has ended: {last_words(complaints)}")


@contextlib.contextmanager
def _process(*arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A command of openmrc, and what it complains of."""
    line = [sys.executable, "-m", "openmrc", *map(str, arguments)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, start_new_session=True) as process,
        ended([process]),
    ):
        yield process, errors
