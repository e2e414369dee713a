"""Metrics to an OpenTelemetry collector: OTLP over HTTP in its JSON encoding.

The encoding is that of opentelemetry.io/docs/specs/otlp: names in lowerCamelCase, 64-bit integers as texts.
The same metrics under the same names as ``/metrics``. Each request has all of them with cumulative counters,
so nothing queues up while a receiver is away, and nothing is lost for it but points in time.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import httpx
from prometheus_client.core import Metric

import openmrc
from openmrc.closing import Closable
from openmrc.errors import ArgumentError
from openmrc.operate.address import checked
from openmrc.printable import printable

PERIOD_S = 10.0
"""Between two requests."""
MOST_WAIT_S = 300.0
"""The same, to a receiver that does not take them."""
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
"""Variable of the OpenTelemetry specification: ``name=value,name=value``, for keys of a receiver."""
_PATH = "/v1/metrics"
_TIMEOUT_S = 10.0
_CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE: enumerations are numbers in OTLP's JSON."""
_MOST_ANSWER = 1 << 16


class Otlp:
    """A receiver, and what it is sent."""

    def __init__(
        self,
        url: str,
        service: str,
        instance: str,
        attributes: Mapping[str, str] | None = None,
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        """Does not connect yet.

        Args:
            url: The receiver, such as ``http://collector:4318``; ``/v1/metrics`` is added if it is not there.
            service: Attribute ``service.name``.
            instance: Attribute ``service.instance.id``.
            attributes: Further attributes of the resource.
            period_s: Between two requests, seconds.

        Raises:
            ArgumentError: if it is no address, or the headers of the environment are malformed.
        """
        address, shown = checked(url, "an OTLP receiver's")
        added = "" if address.endswith(_PATH) else _PATH
        self.url, self.shown = address + added, shown + added
        self.error: str | None = None
        """Why the receiver does not take metrics."""
        self.sent = 0
        """Requests that it has taken."""
        self._headers = _headers(os.environ.get(HEADERS, ""))
        self._resource = [
            _attribute("service.name", service),
            _attribute("service.instance.id", instance),
            _attribute("service.version", openmrc.__version__),
            *(_attribute(name, value) for name, value in (attributes or {}).items()),
        ]
        self._start_ns = time.time_ns()
        self._period_s = period_s
        self._failures = 0
        self._log = logging.getLogger(service.replace("-", "."))

    def body(self, metrics: Iterable[Metric], now_ns: int) -> dict[str, Any]:
        """An ExportMetricsServiceRequest in JSON.

        Args:
            metrics: Counters and gauges.
            now_ns: Nanoseconds since 1970.
        """
        scope = {"name": "openmrc", "version": openmrc.__version__}
        # A counter from before its start would be a reset: clocks are set back now and then.
        now = str(max(now_ns, self._start_ns))
        found = [self._metric(metric, now) for metric in metrics if metric.samples]
        return {
            "resourceMetrics": [
                {
                    "resource": {"attributes": self._resource},
                    "scopeMetrics": [{"scope": scope, "metrics": found}],
                }
            ]
        }

    def _metric(self, metric: Metric, now: str) -> dict[str, Any]:
        is_counter = metric.type == "counter"
        start = {"startTimeUnixNano": str(self._start_ns)} if is_counter else {}
        points = [
            {
                "attributes": [_attribute(name, value) for name, value in sample.labels.items()],
                **start,
                "timeUnixNano": now,
                "asDouble": _number(sample.value),
            }
            for sample in metric.samples
        ]
        # A sample of a counter ends with _total, as in /metrics.
        told = {"name": metric.samples[0].name, "description": metric.documentation}
        if is_counter:
            sums = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True, "dataPoints": points}
            return {**told, "sum": sums}
        return {**told, "gauge": {"dataPoints": points}}

    async def run(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Sends until it is cancelled; no failure ends it.

        Args:
            collect: Returns the metrics; called between two requests.
        """
        async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, headers=self._headers) as http:
            while True:
                try:
                    error, wait = await self._send(http, self.body(collect(), time.time_ns()))
                except Exception as problem:
                    error, wait = printable(str(problem))[:200] or type(problem).__name__, 0.0
                if error != self.error:
                    self._log.warning("otlp %s: %s", self.shown, error or "takes metrics again")
                    self.error = error
                self._failures = self._failures + 1 if error else 0
                await asyncio.sleep(max(wait, self.wait_s()))

    def wait_s(self) -> float:
        """Until the next request, seconds: doubles with each failure, and differs from sender to sender."""
        if not self._failures:
            return self._period_s
        longest = min(MOST_WAIT_S, self._period_s * 2.0 ** min(self._failures, 10))
        return random.uniform(longest / 2, longest)

    async def _send(self, http: httpx.AsyncClient, content: dict[str, Any]) -> tuple[str | None, float]:
        """Posts; why it was not taken, or ``None``, and how long the receiver wants to be left alone."""
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
        headers = {"Content-Type": "application/json"}
        # Not each read alone: a receiver that answers a byte at a time is one that does not answer.
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                async with http.stream("POST", self.url, content=text, headers=headers) as answer:
                    if not answer.is_success:
                        return f"HTTP {answer.status_code}", _retry_after(answer)
                    self.sent += 1
                    found = bytearray()
                    async for part in answer.aiter_bytes():
                        found += part
                        if len(found) > _MOST_ANSWER:
                            break
        except TimeoutError:
            return f"no answer within {_TIMEOUT_S:.0f} s", 0.0
        return _rejected(bytes(found)), 0.0


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": value}}


def _number(value: float) -> float | str:
    """A double of proto3's JSON, which has texts for what JSON has no number for."""
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _headers(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, value = part.partition("=")
        if not separator or not name.strip():
            raise ArgumentError(f"{HEADERS}: it has the form NAME=VALUE,NAME=VALUE")
        found[name.strip()] = unquote(value.strip())
        try:
            httpx.Headers({name.strip(): found[name.strip()]})
        except UnicodeEncodeError:
            raise ArgumentError(
                f"{HEADERS}: {printable(name)[:64]} has a value that no header can have"
            ) from None
    return found


def _retry_after(answer: httpx.Response) -> float:
    with contextlib.suppress(ValueError):
        seconds = float(answer.headers.get("retry-after", "0"))
        if seconds > 0:
            return min(seconds, MOST_WAIT_S)
    return 0.0


def _rejected(answer: bytes) -> str | None:
    """What the receiver says that it did not take of a request that it took."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        partial = json.loads(answer or b"{}").get("partialSuccess") or {}
        if int(partial.get("rejectedDataPoints", 0)):
            told = printable(str(partial.get("errorMessage", "")))[:200]
            return f"{partial['rejectedDataPoints']} points rejected: {told}"
    return None


class Sender(Closable):
    """Sends from a thread of its own, for a program without an event loop."""

    def __init__(self, otlp: Otlp, collect: Callable[[], Iterable[Metric]]) -> None:
        """Begins.

        Args:
            otlp: The receiver.
            collect: Returns the metrics, in the sender's thread.
        """
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] = self._loop.create_task(otlp.run(collect))
        self._thread = threading.Thread(target=self._run, name="openmrc otlp", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)
        self._loop.close()

    def close(self) -> None:
        """Ends, without waiting for a receiver that does not answer."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(2.0)
