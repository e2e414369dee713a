"""Counters and states of a node's interfaces, from the kernel."""

import json
import time
from collections.abc import Iterable
from typing import NamedTuple

from openmrc.errors import DeviceError
from openmrc.lab import system

_PATIENCE_S = 30.0


class PortCounters(NamedTuple):
    """Counters of an interface since it was created."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    up: bool
    """Whether packets pass: it is up and has a carrier, and the kernel has noticed both."""


def read(namespace: str) -> dict[str, PortCounters]:
    """The counters of every port in a namespace, by name."""
    found = json.loads(system.run(["ip", "-n", namespace, "-json", "-stats", "link", "show", "type", "veth"]))
    return {
        entry["ifname"]: PortCounters(
            entry["stats64"]["rx"]["packets"],
            entry["stats64"]["rx"]["bytes"],
            entry["stats64"]["tx"]["packets"],
            entry["stats64"]["tx"]["bytes"],
            entry["operstate"] == "UP",
        )
        for entry in found
    }


def wait_until_up(namespace: str, ports: Iterable[str]) -> None:
    """Waits until the ports pass packets and can resolve their neighbours.

    The kernel activates a port, and gives it the link-local address for neighbour discovery, some time after
    its carrier is back.

    Raises:
        DeviceError: if one of them does not come up.
    """
    deadline = time.monotonic() + _PATIENCE_S
    waiting = set(ports)
    while waiting := waiting - _ready(namespace):
        if time.monotonic() > deadline:
            raise DeviceError(f"{namespace}: port {min(waiting)} does not come up")
        time.sleep(0.01)


def _ready(namespace: str) -> set[str]:
    found = json.loads(system.run(["ip", "-n", namespace, "-json", "-6", "address", "show", "up"]))
    return {
        entry["ifname"]
        for entry in found
        if entry.get("operstate") == "UP"
        and any(each["scope"] == "link" and "tentative" not in each for each in entry["addr_info"])
    }
