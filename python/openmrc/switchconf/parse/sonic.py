"""Reads the file of a SONiC switch: config_db.json."""

import json
from typing import Any

from openmrc.switchconf.parse.model import Complaint, Files, Parsed, Route, Where

FILE = "config_db.json"

_FORBIDDEN = ("BGP_NEIGHBOR", "BGP_PEER_RANGE", "BGP_GLOBALS", "OSPFV2_ROUTER", "ISIS_GLOBALS", "PFC_WD")
"""Tables that start a routing protocol or PFC."""

_KNOWN = {
    "DEVICE_METADATA",
    "PORT",
    "INTERFACE",
    "SRV6_MY_LOCATORS",
    "SRV6_MY_SIDS",
    "STATIC_ROUTE",
    "DSCP_TO_TC_MAP",
    "TC_TO_QUEUE_MAP",
    "TC_TO_DSCP_MAP",
    "PORT_QOS_MAP",
    "SCHEDULER",
    "WRED_PROFILE",
    "QUEUE",
    "BUFFER_POOL",
    "BUFFER_PROFILE",
    "BUFFER_QUEUE",
    "SWITCH_TRIMMING",
}


_MOST_QUEUES = 1024
"""Of a port, unicast and multicast."""


class _DuplicateError(ValueError):
    """A duplicate key of an object: JSON would silently keep the last one."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateError(key)
            seen.add(key)
    return value


def parse(files: Files) -> Parsed:
    """The switch."""
    parsed = Parsed()
    text = files.text(FILE, parsed)
    if not text:
        return parsed
    try:
        tables = json.loads(text, object_pairs_hook=_object)
        if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
            raise _ShapeError
        _tables(tables, parsed)
    except _DuplicateError as error:
        key = f'"{error}"'
        before = text[: text.find(key, text.find(key) + len(key))]
        parsed.complain(Where(FILE, before.count("\n") + 1), f"{error} is there twice")
    except json.JSONDecodeError as error:
        parsed.complain(Where(FILE, error.lineno), f"not JSON: {error.msg}")
    except (_ShapeError, AttributeError, TypeError, ValueError) as error:
        parsed.complain(
            Where(FILE, 0), f"not a config_db: {str(error) or 'tables of entries of fields expected'}"
        )
    return parsed


class _ShapeError(ValueError):
    """The JSON does not consist of tables of entries."""


def _tables(tables: dict[str, dict[str, Any]], parsed: Parsed) -> None:
    parsed.hostname = tables.get("DEVICE_METADATA", {}).get("localhost", {}).get("hostname")
    parsed.forwards = True  # SONiC forwards IPv6 by default.
    for table in tables:
        if table in _FORBIDDEN:
            parsed.complain(_at(table), f"table {table} must not be there: no routing protocol, no PFC")
        elif table not in _KNOWN:
            parsed.not_understood(_at(table), f"table {table}")
    for name, fields in tables.get("PORT", {}).items():
        if "lanes" in fields:
            parsed.hardware[name] = (fields["lanes"], fields.get("speed", ""), _at(name))
    for key in tables.get("INTERFACE", {}):
        interface, bar, address = key.partition("|")
        if bar:
            parsed.address(interface, address, _at(key))
    for key, fields in tables.get("STATIC_ROUTE", {}).items():
        vrf, _, prefix = key.rpartition("|")
        if vrf not in ("", "default"):
            parsed.unknown.append(Complaint(_at(key), f"a route of VRF {vrf}"))
            continue
        next_hop, interface = fields.get("nexthop", ""), fields.get("ifname")
        if "," in next_hop or "," in (interface or ""):
            parsed.complain(_at(key), f"{prefix} has more than one next hop: {next_hop}")
        parsed.routes.append(Route(prefix, interface, next_hop, _at(key)))
    _own(tables, parsed)
    _qos(tables, parsed)


def _own(tables: dict[str, dict[str, Any]], parsed: Parsed) -> None:
    locators = tables.get("SRV6_MY_LOCATORS", {})
    for key, fields in tables.get("SRV6_MY_SIDS", {}).items():
        name, _, prefix = key.partition("|")
        where = _at(key)
        parsed.own.append((prefix, where))
        locator = locators.get(name, {})
        if f"{locator.get('prefix')}/48" != prefix:
            parsed.complain(where, f"{prefix} is not the prefix of locator {name}")
        if fields.get("action") != "uN":
            parsed.complain(where, f"{prefix}: action {fields.get('action')}, not uN")
        lengths = tuple(locator.get(f"{part}_len") for part in ("block", "node"))
        if lengths != ("32", "16"):
            parsed.complain(where, f"locator {name} is not of 32-bit block and 16-bit node")


def _qos(tables: dict[str, dict[str, Any]], parsed: Parsed) -> None:
    # Ports without addresses, and the entry `global` for ports without maps of their own, carry no traffic.
    routed = {key.partition("|")[0] for key in tables.get("INTERFACE", {})}
    maps = {port: fields for port, fields in tables.get("PORT_QOS_MAP", {}).items() if port in routed}
    for port, fields in maps.items():
        if fields.get("pfc_enable"):
            parsed.complain(Where(FILE, f'"{port}": {{"dscp_to_tc_map'), f"PFC is on at {port}")
    strict = {name for name, fields in tables.get("SCHEDULER", {}).items() if fields.get("type") == "STRICT"}
    strict_queues: set[str] = set()
    shared_queues: set[str] = set()
    for key, fields in tables.get("QUEUE", {}).items():
        port, _, queue = key.partition("|")
        if fields.get("scheduler") in strict:
            strict_queues.update(_queues(queue))
        elif port in maps:
            shared_queues.update(_queues(queue))
        profile = tables.get("WRED_PROFILE", {}).get(fields.get("wred_profile", ""), {})
        if profile.get("ecn") == "ecn_all":
            parsed.marking.add(port)
            bounds = (
                int(profile.get("green_min_threshold", "0")),
                int(profile.get("green_max_threshold", "0")),
            )
            parsed.thresholds.add(bounds)
    for queue in sorted(strict_queues & shared_queues):
        parsed.complain(_at("QUEUE"), f"queue {queue} is strict at some ports only")
    # The maps that ports use; a code point is strict or mapped if it is so at every port.
    used = {(fields.get("dscp_to_tc_map", ""), fields.get("tc_to_queue_map", "")) for fields in maps.values()}
    mapped: list[set[int]] = []
    strict_codes: list[set[int]] = []
    for classes_name, queues_name in used:
        classes = tables.get("DSCP_TO_TC_MAP", {}).get(classes_name, {})
        queues = tables.get("TC_TO_QUEUE_MAP", {}).get(queues_name, {})
        mapped.append({int(code) for code in classes})
        strict_codes.append({int(code) for code, tc in classes.items() if queues.get(tc) in strict_queues})
    parsed.mapped_codes = set.intersection(*mapped) if mapped else set()
    parsed.strict_codes = set.intersection(*strict_codes) if strict_codes else set()


def _queues(text: str) -> list[str]:
    """The queues of ``6`` or ``0-1``."""
    first, _, last = text.partition("-")
    if int(last or first) >= _MOST_QUEUES:
        raise ValueError(f"queue {text}: a port has fewer than {_MOST_QUEUES} queues")
    return [str(number) for number in range(int(first), int(last or first) + 1)]


def _at(key: str) -> Where:
    return Where(FILE, f'"{key}"')
