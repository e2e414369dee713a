"""``openmrc devices``: what the open devices of this user's processes do."""

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc.cli import _common, _values
from openmrc.units import rate

if TYPE_CHECKING:
    from openmrc.observe import DeviceState

COLUMNS = ("PID", "DEVICE", "JOB", "PORTS", "TX", "RX", "CONDEMNED", "DROPS", "PROGRAM")


def devices(
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the events of all devices as they come.")
    ] = False,
    window: Annotated[
        float, typer.Option("--window", help="Time over which rates are measured.", **_values.time(0.01))
    ] = 1.0,
    json: _common.JsonOption = False,
) -> None:
    """Show the open devices of this user's processes: ports, rates, condemned paths, drops.

    Devices of the commands of openmrc are shown, and of programs that run with OPENMRC_OBSERVE=1 or call
    openmrc.observe.publish. OPENMRC_JOB names a job. With --follow, events: ports and paths that fail and
    come back, peers that are silent. Any number of readers see the same events.
    """
    if follow:
        _follow(json=json)
        return
    before = _states()
    time.sleep(window if before else 0)
    rows, objects = [], []
    for key, now in _states().items():
        since = before.get(key, now)
        seconds = max((now.time_ns - since.time_ns) / 1e9, 1e-9)
        sent, received = (
            sum(port[name] for port in now.stats["ports"]) - sum(port[name] for port in since.stats["ports"])
            for name in ("tx_bytes", "rx_bytes")
        )
        objects.append(
            {**dataclasses.asdict(now), "tx_bps": sent * 8 / seconds, "rx_bps": received * 8 / seconds}
        )
        rows.append(
            (
                str(now.pid),
                now.device,
                now.job or "-",
                f"{len(now.ports_up)}/{len(now.addresses)}",
                rate(sent, seconds),
                rate(received, seconds),
                str(now.condemned),
                str(sum(now.stats["causes"].values())),
                now.program,
            )
        )
    if json:
        _common.print_json(objects)
    elif rows:
        _common.print_table(COLUMNS, rows, left=3)
    else:
        _common.console(stderr=True).print("no process of this user publishes a device (OPENMRC_OBSERVE=1)")


def _states() -> "dict[str, DeviceState]":
    """By socket; devices that have just been closed are left out."""
    from openmrc.errors import DeviceError
    from openmrc.observe import Observer, devices

    found = {}
    for path in devices():
        try:
            with Observer(path) as observer:
                found[path.name] = observer.state()
        except DeviceError as error:
            _common.console(stderr=True).print(f"note: {error}")
        except OSError:
            continue
    return found


def _follow(*, json: bool) -> None:
    import queue
    import threading
    from pathlib import Path

    from openmrc.observe import Event, Observer, devices

    events: queue.Queue[Event] = queue.Queue()
    known: set[Path] = set()

    def read(path: Path) -> None:
        try:
            with Observer(path) as observer:
                for event in observer.follow():
                    events.put(event)
        except OSError:
            return
        finally:
            known.discard(path)

    while True:
        for path in set(devices()) - known:
            known.add(path)
            threading.Thread(target=read, args=(path,), daemon=True).start()
        try:
            event = events.get(timeout=0.5)
        except queue.Empty:
            continue
        if json:
            _common.print_json_line(dataclasses.asdict(event))
        else:
            print(f"{event.time_ns / 1e9:.6f}  {event}", flush=True)
