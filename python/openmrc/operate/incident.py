"""An incident: a fault of a controller with what was recorded around it, as one file of JSON."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openmrc.control.messages import problem
from openmrc.errors import ArgumentError, Error, FormatError
from openmrc.fabric import Fabric
from openmrc.files import write_text
from openmrc.localise import Component, Kind
from openmrc.operate.client import Client
from openmrc.operate.linkmap import Topology
from openmrc.operate.model import Change, Name, NamedFault, Outcome

AROUND_S = 60.0
"""What is recorded so long before and after the fault belongs to it."""
MOST_BYTES = 64 << 20
"""Of a file."""
_MOST_LINKS = 64
"""Links whose history is asked for."""

Seconds = Annotated[float, Field(ge=0, lt=1 << 40, allow_inf_nan=False)]
"""Since 1970."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Suspected(BaseModel):
    """A component that explains the fault."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: Kind
    name: Name
    probability: Share


class Fault(BaseModel):
    """The fault, as the controller named it (:class:`openmrc.operate.model.NamedFault`)."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: int
    kind: Literal["link", "upward", "downward", "switch", "host", "group", "unknown"]
    name: Name
    since: Seconds
    until: Seconds | None = None
    confidence: Share
    loss: Share
    evidence_nats: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    paths: Annotated[int, Field(ge=0)] = 0
    suspects: list[Suspected] = []
    cost_bps: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class Incident(BaseModel):
    """A fault with what was recorded around it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    openmrc_incident: Literal[1] = 1
    """Version of the form."""
    exported: Seconds
    fabric: Annotated[str, Field(min_length=1, max_length=1 << 20)]
    """The fabric's file, YAML."""
    fault: Fault
    changes: list[Change] = []
    """Of the links concerned, the oldest first."""
    decisions: list[Outcome] = []
    """About these links, the oldest first."""
    others: list[Fault] = []
    """Faults that were open at the same time."""


def fabric_of(text: str) -> Fabric:
    """The fabric of a file's text.

    Raises:
        FormatError: if it is none.
    """
    with TemporaryDirectory(prefix="openmrc-") as scratch:
        place = Path(scratch, "fabric.yaml")
        write_text(place, text, sync=False)
        try:
            return Fabric.load(place)
        except Error as error:
            raise FormatError(str(error).replace(str(place), "fabric")) from None


def collect(client: Client, number: int, now: float) -> Incident:
    """Asks a controller for a fault and what it has recorded around it.

    Args:
        client: Of the controller.
        number: The fault's.
        now: Seconds since 1970.

    Raises:
        ArgumentError: if the controller has no such fault.
    """
    faults = [*client.faults(), *client.faults(over=True)]
    found = next((fault for fault in faults if fault.id == number), None)
    if found is None:
        known = ", ".join(str(fault.id) for fault in faults[:8])
        raise ArgumentError(
            f"the controller has no fault {number}; `openmrc fabric faults --json` lists ids"
            + (f": {known}" if known else "")
        )
    text = client.specification()
    topology = Topology(fabric_of(text))
    begin, end = found.since - AROUND_S, (found.until or now) + AROUND_S
    links = _links(topology, found)
    changes = [
        change
        for link in links[:_MOST_LINKS]
        for change in client.link(link).history
        if begin <= change.time <= end
    ]
    decisions = [
        outcome
        for outcome in client.decisions()
        if begin <= outcome.time <= end and not set(links).isdisjoint(outcome.links)
    ]
    return Incident(
        exported=now,
        fabric=text,
        fault=_plain(found),
        changes=sorted(changes, key=lambda change: change.time),
        decisions=sorted(decisions, key=lambda outcome: outcome.time),
        others=[_plain(f) for f in faults if f.id != number and _overlap(f, begin, end)],
    )


def _plain(fault: NamedFault) -> Fault:
    return Fault.model_validate(fault.model_dump())


def _overlap(fault: NamedFault, begin: float, end: float) -> bool:
    return fault.since <= end and (fault.until is None or fault.until >= begin)


def _links(topology: Topology, fault: NamedFault) -> list[str]:
    named = [Component(Kind(each.kind), each.name) for each in fault.suspects]
    if fault.kind != "unknown":
        named = [Component(Kind(fault.kind), fault.name)]
    return list(dict.fromkeys(link for each in named for link in topology.parts(each)))


def parse(text: str, name: str) -> Incident:
    """An incident from JSON.

    Args:
        text: The JSON.
        name: What it is called in messages.

    Raises:
        FormatError: if it is none, naming the field.
    """
    try:
        found = Incident.model_validate_json(text)
    except ValidationError as error:
        raise FormatError(f"{name}: {_problem(error)}") from None
    fault = found.fault
    if fault.until is not None and fault.until < fault.since:
        raise FormatError(f"{name}: fault.until: {fault.until} is before fault.since, {fault.since}")
    if fault.kind == "unknown" and not fault.suspects:
        raise FormatError(f"{name}: fault.suspects: a fault of kind unknown needs one")
    for number, change in enumerate(found.changes):
        if not 0 <= change.time < 1 << 40:
            raise FormatError(f"{name}: changes.{number}.time: {change.time} is no time since 1970")
    return found


def _problem(error: ValidationError) -> str:
    told = problem(error)
    return "no JSON: " + told.partition(": ")[2] if told.startswith("Invalid JSON") else told


def down_times(changes: Iterable[Change], link: str) -> list[tuple[float, float | None]]:
    """When a link was broken or lost packets, from its history; ``None``: it did not end.

    A link that is denied is not used, so that it is unknown is no sign of repair.
    """
    found: list[tuple[float, float | None]] = []
    for change in changes:
        if change.link != link:
            continue
        down = bool(found) and found[-1][1] is None
        if change.evidence in ("broken", "lossy") and not down:
            found.append((change.time, None))
        elif change.evidence == "good" and down:
            found[-1] = (found[-1][0], change.time)
    return found
