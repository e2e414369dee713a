#!/usr/bin/env python3
"""A stand-in for the commands of a SONiC switch that load.sh uses: ConfigDB is a JSON file.

What they do is known from public sources: presets from config_samples.py of sonic-buildimage, queues and maps
from its qos_config.j2 and buffers_config.j2, and that ``config load`` adds fields to entries that are there.
Named ``config``, ``sonic-cfggen`` and ``sonic-db-cli`` in a directory on the path.
"""

import json
import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

ETC = Path(os.environ["SONIC"])
DATABASE = ETC / "database.json"


def read(path):
    return json.loads(Path(path).read_text())


def write(path, tables):
    Path(path).write_text(
        json.dumps({name: entries for name, entries in tables.items() if entries}, indent=1)
    )


def preset(hwsku, name):
    """What ``sonic-cfggen -H -k SKU --preset NAME`` prints."""
    metadata = {"localhost": {"hwsku": hwsku, "platform": "x86_64-some-r0", "mac": "02:00:00:00:00:01"}}
    if "Mellanox" in hwsku:
        metadata["localhost"]["buffer_model"] = "dynamic"
    if name == "empty":
        metadata["localhost"] |= {"hostname": "sonic", "type": "LeafRouter"}
        return {"DEVICE_METADATA": metadata}
    assert name == "l1", name
    ports = read(ETC / "ports.json")
    up = {port: {**fields, "admin_status": "up", "mtu": "9100"} for port, fields in ports.items()}
    return {"DEVICE_METADATA": metadata, "PORT": up}


def qos(tables):
    """What ``config qos reload`` leaves: pools of the platform, PFC, and queues by range."""
    ports = tables.get("PORT", {})
    names = {"dscp_to_tc_map": "AZURE", "tc_to_queue_map": "AZURE", "tc_to_pg_map": "AZURE"}
    lossless = {"pfc_enable": "3,4", "pfcwd_sw_enable": "3,4", "pfc_to_queue_map": "AZURE"}
    tables["PORT_QOS_MAP"] = {"global": {"dscp_to_tc_map": "AZURE"}} | dict.fromkeys(ports, names | lossless)
    tables["QUEUE"] = {
        f"{port}|{queue}": {"scheduler": "scheduler.0"} for port in ports for queue in range(8)
    }
    tables["BUFFER_QUEUE"] = {f"{port}|0-9": {"profile": "egress_lossy_profile"} for port in ports}
    tables["BUFFER_PG"] = {f"{port}|3-4": {"profile": "NULL"} for port in ports}
    tables["BUFFER_PG"] |= {f"{port}|0": {"profile": "ingress_lossy_profile"} for port in ports}
    pool = {"type": "egress", "mode": "dynamic", "size": "165335712"}
    tables["BUFFER_POOL"] = {"egress_lossy_pool": pool}
    tables["BUFFER_PROFILE"] = {
        "egress_lossy_profile": {"pool": "egress_lossy_pool", "size": "0", "dynamic_th": "1"}
    }


def check_buffers(tables):
    """The dynamic buffer model refuses a profile whose threshold is not of its pool's mode (cfgmgr)."""
    if tables["DEVICE_METADATA"]["localhost"].get("buffer_model") != "dynamic":
        return
    for name, fields in tables.get("BUFFER_PROFILE", {}).items():
        mode = f"{tables['BUFFER_POOL'][fields['pool']]['mode']}_th"
        if mode not in fields:
            sys.exit(f"buffermgrd: profile {name} does not align with its pool, whose mode is {mode}")


def database(arguments):
    match arguments:
        case ["CONFIG_DB", "KEYS", pattern]:
            for table, entries in read(DATABASE).items():
                for key in entries:
                    if fnmatchcase(f"{table}|{key}", pattern):
                        print(f"{table}|{key}")
        case ["CONFIG_DB", "DEL", *keys]:
            tables = read(DATABASE)
            for key in keys:
                table, _, entry = key.partition("|")
                del tables[table][entry]
            write(DATABASE, tables)
        case _:
            sys.exit(f"sonic-db-cli {arguments}")


def config(arguments):
    match arguments:
        case ["reload", "-y", "-f"]:
            tables = read(ETC / "config_db.json")
            check_buffers(tables)
            write(DATABASE, tables)
        case ["qos", "reload"]:
            tables = read(DATABASE)
            qos(tables)
            write(DATABASE, tables)
        case ["load", "-y", path]:
            tables = read(DATABASE)
            for table, entries in read(path).items():
                for key, fields in entries.items():
                    tables.setdefault(table, {}).setdefault(key, {}).update(fields)
            write(DATABASE, tables)
        case ["save", "-y"]:
            write(ETC / "config_db.json", read(DATABASE))
        case _:
            sys.exit(f"config {arguments}")


def generate(arguments):
    match arguments:
        case ["-H", "-k", hwsku, "--preset", name]:
            print(json.dumps(preset(hwsku, name)))
        case ["-d", "-v", _]:
            print(read(DATABASE)["DEVICE_METADATA"]["localhost"]["hwsku"])
        case _:
            sys.exit(f"sonic-cfggen {arguments}")


if __name__ == "__main__":
    {"config": config, "sonic-db-cli": database, "sonic-cfggen": generate}[Path(sys.argv[0]).name](
        sys.argv[1:]
    )
