"""Alerts of opened and ended faults to Alertmanagers, over HTTP in the form of its API, version 2.

Faults are the truth, and what is sent follows from them: nothing queues up while an Alertmanager is away. An
open fault is sent again before it would end by itself, so alerts of a controller that has died end too.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from openmrc.errors import ArgumentError
from openmrc.operate.address import checked
from openmrc.operate.model import NamedFault
from openmrc.printable import printable

PERIOD_S = 0.25
"""Between two looks at the faults."""
RESEND_S = 60.0
"""After so long an open fault is sent again."""
EXPIRES_S = 4 * RESEND_S
"""An open fault that is not sent again ends after so long."""
FORGET_S = 3600.0
"""A fault that has ended is sent to an Alertmanager that was away for at most this long."""
MOST_WAIT_S = 60.0
MOST_ALERTS = 10_000
_MOST_IN_A_REQUEST = 200
_MOST_TARGETS = 8
_TIMEOUT_S = 10.0
_CRITICAL = frozenset(("switch", "group"))
_log = logging.getLogger("openmrc.controller")
Key = tuple[str, str]


@dataclass(slots=True)
class _Alert:
    fault: NamedFault
    version: int
    """Grows when it begins or ends anew."""


@dataclass(slots=True)
class Target:
    """An Alertmanager."""

    url: str
    shown: str
    """The address without a password."""
    error: str | None = None
    """Why it does not take alerts."""
    sent: int = 0
    taken: dict[Key, tuple[int, float]] = field(default_factory=dict)
    """Version of each alert that it has, and when it was sent, monotonic seconds."""


class Alerts:
    """What Alertmanagers should know, and what each of them does."""

    def __init__(self, urls: Iterable[str], fabric: str, page: str = "") -> None:
        """Does not connect yet.

        Args:
            urls: Addresses, ``http://HOST:PORT`` or ``https://...``, with a path in front of ``/api/v2`` if
                there is one.
            fabric: The fabric's name, a label of each alert.
            page: Address of the controller's page, a link of each alert.

        Raises:
            ArgumentError: if one is no address, or there are too many.
        """
        self.targets = [_target(url) for url in dict.fromkeys(urls)]
        if len(self.targets) > _MOST_TARGETS:
            raise ArgumentError(f"{len(self.targets)} Alertmanagers; at most {_MOST_TARGETS} are told")
        self.fabric = fabric
        self.page = page
        self._alerts: dict[Key, _Alert] = {}
        self._versions = 0

    def look(self, faults: Iterable[NamedFault], now: float) -> None:
        """Takes the faults that are open now; the others are over.

        Args:
            faults: Open faults.
            now: Seconds since 1970.
        """
        found = {_key(fault): fault for fault in faults}
        for key, fault in found.items():
            before = self._alerts.get(key)
            if before is None or before.fault.until is not None:
                self._set(key, fault)
            else:
                before.fault = fault  # The evidence has grown; it is sent with the next reminder.
        for key, alert in list(self._alerts.items()):
            until = alert.fault.until
            if until is None and key not in found:
                self._set(key, alert.fault.model_copy(update={"until": now}))
            elif until is not None and (now - until > FORGET_S or self._all_have(key, alert)):
                self._forget(key)
        for key in list(self._alerts)[: max(0, len(self._alerts) - MOST_ALERTS)]:
            self._forget(key)

    def _set(self, key: Key, fault: NamedFault) -> None:
        self._versions += 1
        self._alerts.pop(key, None)  # The newest are last.
        self._alerts[key] = _Alert(fault, self._versions)

    def _all_have(self, key: Key, alert: _Alert) -> bool:
        return all(target.taken.get(key, (0, 0.0))[0] == alert.version for target in self.targets)

    def _forget(self, key: Key) -> None:
        del self._alerts[key]
        for target in self.targets:
            target.taken.pop(key, None)

    def due(self, target: Target, now: float) -> list[tuple[Key, int]]:
        """What a target should be sent: key and version of alerts, at most one request.

        An alert that begins and ends while the target is away is sent once, with both times.
        """
        found = []
        for key, alert in self._alerts.items():
            version, sent = target.taken.get(key, (0, 0.0))
            if version != alert.version or (alert.fault.until is None and now - sent >= RESEND_S):
                found.append((key, alert.version))
        return found[:_MOST_IN_A_REQUEST]

    def body(self, keys: Iterable[Key], now: float) -> list[dict[str, Any]]:
        """Alerts as the API has them.

        Args:
            keys: Which.
            now: Seconds since 1970.
        """
        return [self._content(key, self._alerts[key].fault, now) for key in keys if key in self._alerts]

    def _content(self, key: Key, fault: NamedFault, now: float) -> dict[str, Any]:
        names = [each.name for each in fault.suspects[:4]] if fault.kind == "unknown" else [fault.name]
        what = "one of " + ", ".join(names) if fault.kind == "unknown" else f"{fault.kind} {fault.name}"
        return {
            "labels": {
                "alertname": "OpenmrcFault",
                "fabric": self.fabric,
                "kind": key[0],
                "component": key[1],
                "severity": "critical" if fault.kind in _CRITICAL else "warning",
            },
            "annotations": {
                "summary": f"{what}: {fault.loss:.2%} lost",
                "description": f"confidence {fault.confidence:.2f}, {fault.evidence_nats:.0f} nats,"
                f" {fault.paths} paths; takes {fault.cost_bps / 1e9:g} Gbit/s",
                "fault": str(fault.id),
            },
            "startsAt": _time(fault.since),
            "endsAt": _time(max(fault.since, now + EXPIRES_S if fault.until is None else fault.until)),
            **({"generatorURL": self.page} if self.page else {}),
        }

    # --- sending --------------------------------------------------------------------------------------------

    async def run(self, faults: Callable[[], Iterable[NamedFault]]) -> None:
        """Looks and sends until it is cancelled; no failure of an Alertmanager ends or delays anything else.

        Args:
            faults: Returns the open ones.
        """
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for target in self.targets:
                tasks.create_task(self._serve(target, http))
            while True:
                self.look(faults(), time.time())
                await asyncio.sleep(PERIOD_S)

    async def _serve(self, target: Target, http: httpx.AsyncClient) -> None:
        failures = 0
        while True:
            due = self.due(target, time.monotonic())
            if not due:
                await asyncio.sleep(PERIOD_S)
                continue
            error = await self._send(target, http, [key for key, _ in due])
            if error is None:
                failures = 0
                now = time.monotonic()
                target.taken |= {key: (version, now) for key, version in due if key in self._alerts}
                target.sent += len(due)
            if error != target.error:
                _log.warning("alertmanager %s: %s", target.shown, error or "takes alerts again")
                target.error = error
            if error is not None:
                failures += 1
                longest = min(MOST_WAIT_S, 2.0 ** min(failures - 1, 10))
                await asyncio.sleep(random.uniform(longest / 2, longest))

    async def _send(self, target: Target, http: httpx.AsyncClient, keys: list[Key]) -> str | None:
        """Posts; why it was not taken, or ``None``."""
        try:
            content = self.body(keys, time.time())
            # The answer's body says nothing that is needed, and need not end.
            async with http.stream("POST", f"{target.url}/api/v2/alerts", json=content) as answer:
                return None if answer.is_success else f"HTTP {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return printable(str(error))[:200] or type(error).__name__


def _key(fault: NamedFault) -> Key:
    """Kind and name. The order of an unknown fault's suspects changes with every packet, a label must not."""
    if fault.kind == "unknown":
        return fault.kind, ",".join(sorted(each.name for each in fault.suspects))
    return fault.kind, fault.name


def _target(url: str) -> Target:
    return Target(*checked(url, "an Alertmanager's"))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
