"""ConfigDB tables of SONiC as YANG data, and their validation by yanglint against SONiC's own schema."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.helpers.repository import ROOT

SCHEMAS = Path(os.environ.get("OPENMRC_SONIC_YANG", ROOT.parent / "shared" / "sonic-yang"))
"""Directories of YANG modules, one per release of SONiC. They do not belong to this project."""

RELEASES = ("202511", "202605")

# Table: module, names of the parts of a key, and for tables with a second list its name.
_LISTS = {
    "PORT": ("sonic-port", ("name",)),
    "SRV6_MY_LOCATORS": ("sonic-srv6", ("locator_name",)),
    "SRV6_MY_SIDS": ("sonic-srv6", ("locator", "ip_prefix")),
    "STATIC_ROUTE": ("sonic-static-route", ("vrf_name", "prefix")),
    "PORT_QOS_MAP": ("sonic-port-qos-map", ("ifname",)),
    "SCHEDULER": ("sonic-scheduler", ("name",)),
    "WRED_PROFILE": ("sonic-wred-profile", ("name",)),
    "QUEUE": ("sonic-queue", ("ifname", "qindex")),
    "BUFFER_POOL": ("sonic-buffer-pool", ("name",)),
    "BUFFER_PROFILE": ("sonic-buffer-profile", ("name",)),
    "BUFFER_QUEUE": ("sonic-buffer-queue", ("port", "qindex")),
}
_MAPS = {
    "DSCP_TO_TC_MAP": ("sonic-dscp-tc-map", ("dscp", "tc")),
    "TC_TO_QUEUE_MAP": ("sonic-tc-queue-map", ("tc", "qindex")),
    "TC_TO_DSCP_MAP": ("sonic-tc-dscp-map", ("tc", "dscp")),
}
_FIRST = ("sonic-device_metadata", "sonic-port", "sonic-types")
_CONTAINERS = {"DEVICE_METADATA": "sonic-device_metadata", "SWITCH_TRIMMING": "sonic-trimming"}
# Leaves of at most 32 bits are numbers in JSON (RFC 7951); ConfigDB has only text.
_NUMBERS = {
    *("block_len", "node_len", "func_len", "arg_len", "index", "speed", "mtu", "weight"),
    *("dscp_value", "tc_value", "queue_index", "tc", "dynamic_th"),
}


def missing():
    """The reason why nothing can be validated here; ``None`` if it can."""
    if shutil.which("yanglint") is None:
        return "yanglint is not installed (Debian: libyang2-tools)"
    absent = [release for release in RELEASES if not (SCHEMAS / release).is_dir()]
    if absent:
        return f"SONiC's YANG modules are not in {SCHEMAS}; OPENMRC_SONIC_YANG names another directory"
    return None


def problems(tables, release, directory):
    """What yanglint finds wrong with the tables of one switch."""
    return problems_of([tables], release, directory)


def problems_of(switches, release, directory):
    """What yanglint finds wrong with the tables of several switches, each by itself."""
    paths = [directory / f"{release}-{number}.json" for number in range(len(switches))]
    for path, tables in zip(paths, switches, strict=True):
        path.write_text(json.dumps(to_yang(tables)))
    schema = SCHEMAS / release
    # The modules that others ask about come first: conditions on modules that are not yet there are skipped.
    modules = sorted(schema.glob("*.yang"), key=lambda m: (m.stem not in _FIRST, m.stem))
    run = subprocess.run(
        ["yanglint", "-p", schema, "-f", "json", "-t", "config", *modules, *paths],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return [line for line in run.stderr.splitlines() if line] or [run.returncode][: run.returncode]


def to_yang(tables):
    """YANG data (RFC 7951) of ConfigDB tables; an unknown table is an error."""
    data = {}
    for table, entries in tables.items():
        if table in _CONTAINERS:
            module, value = _CONTAINERS[table], {k: _leaves(table, v) for k, v in entries.items()}
        elif table in _MAPS:
            module, (one, other) = _MAPS[table]
            rows = [
                {"name": name, table: [_leaves(table, {one: a, other: b}) for a, b in pairs.items()]}
                for name, pairs in entries.items()
            ]
            value = {f"{table}_LIST": rows}
        elif table == "INTERFACE":
            module, names, prefixes = "sonic-interface", [], []
            for key, fields in entries.items():
                name, bar, prefix = key.partition("|")
                row = {"name": name, **fields}
                prefixes.append({**row, "ip-prefix": prefix}) if bar else names.append(row)
            value = {"INTERFACE_LIST": names, "INTERFACE_IPPREFIX_LIST": prefixes}
        else:
            module, keys = _LISTS[table]
            rows = [
                {**dict(zip(keys, key.split("|"), strict=True)), **_leaves(table, fields)}
                for key, fields in entries.items()
            ]
            value = {f"{table}_LIST": rows}
        data.setdefault(f"{module}:{module}", {})[table] = value
    return data


def _leaves(table, fields):
    return {key: _leaf(table, key, value) for key, value in fields.items()}


def _leaf(table, key, value):
    if value in ("true", "false"):
        return value == "true"
    # `size` is a 32-bit number of SWITCH_TRIMMING and a 64-bit one, that is text, of a buffer.
    number = key in _NUMBERS or (key == "size" and table == "SWITCH_TRIMMING")
    if number and value.removeprefix("-").isdigit():
        return int(value)
    return value
