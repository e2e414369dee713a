"""Transports as short texts: ``mrc``, ``rocev2:qps=8``, ``rocev2:qps=8:planes=1``."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from openmrc.errors import ArgumentError
from openmrc.model import in_words
from openmrc.sim.scenario import Network, Nic, Scenario, Switch, Transport
from openmrc.sim.scenario.transport import fields_of

_transport: TypeAdapter[Any] = TypeAdapter(Transport)


def names(text: str) -> list[str]:
    """The transports of a list separated by commas.

    Raises:
        ArgumentError: if there are none, or one is named twice.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ArgumentError("transports: none given; write them like mrc,rocev2:qps=8")
    for place, name in enumerate(found):
        if name in found[:place]:
            raise ArgumentError(f"transports: {name} is named twice")
    return found


def apply(scenario: Scenario, text: str) -> Scenario:
    """The scenario with another transport, on the network that this transport is meant for.

    ``planes=1`` puts it on one plane of the same total bandwidth; other options are fields of the transport.

    Raises:
        ArgumentError: if there is no such transport or field, or a value is out of range.
    """
    try:
        fields = fields_of(text)
    except ValueError as error:
        raise ArgumentError(f"transports: {error}") from None
    kind = fields["kind"]
    planes = fields.pop("planes", scenario.topology.planes)
    if planes not in (1, scenario.topology.planes):
        own = scenario.topology.planes
        raise ArgumentError(f"transports: {text}: planes: {planes} is neither 1 nor the scenario's, {own}")
    try:
        transport = _transport.validate_python(fields)
    except ValidationError as error:
        raise ArgumentError(f"transports: {text}: {in_words(error, Transport)}") from None
    if planes != scenario.topology.planes:
        scenario = on_planes(scenario, planes)
    return scenario.model_copy(update={"transport": transport, "network": _network(scenario, kind)})


def with_fields(scenario: Scenario, fields: Mapping[str, Any]) -> Scenario:
    """The scenario with some fields of its transport replaced.

    Raises:
        ArgumentError: if there is no such field, or a value is out of range.
    """
    try:
        transport = _transport.validate_python(
            {**scenario.transport.model_dump(exclude_unset=True), "kind": scenario.transport.kind, **fields}
        )
    except ValidationError as error:
        raise ArgumentError(f"{scenario.transport.kind}: {in_words(error, Transport)}") from None
    return scenario.model_copy(update={"transport": transport})


def _network(scenario: Scenario, kind: str) -> Network:
    """The network, with open what depends on the transport, unless the transport is of the same kind."""
    if kind == scenario.transport.kind:
        return scenario.network
    left_open = {"routing": None, "reroutes": None, "encapsulation": None, "switch": Switch()}
    return scenario.network.model_copy(update=left_open)


def on_planes(scenario: Scenario, planes: int) -> Scenario:
    """The same hosts on another number of planes with the same rate together, on switches with as many ports.

    Faults keep their names. One that names what the new fabric does not have is refused when it runs.

    Raises:
        ArgumentError: if links to capture are named, or the number is out of range.
    """
    topology = scenario.topology
    if topology.planes == planes:
        return scenario
    if scenario.record.capture:
        raise ArgumentError(f"planes={planes}: the capture names links of other planes; compare on those")
    rate = topology.port_rate * topology.planes
    changed = topology.model_copy(update={"planes": planes, "nic": Nic(rate=rate), "fabric": None})
    return scenario.model_copy(update={"topology": changed})
