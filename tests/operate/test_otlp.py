"""Metrics as an OpenTelemetry receiver gets them, and what happens while there is none."""

import asyncio
import json
import math
import re
import time
from contextlib import suppress

import httpx
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from openmrc.errors import ArgumentError
from openmrc.operate import otlp as exporting
from openmrc.operate.otlp import MOST_WAIT_S, Otlp, Sender
from tests.helpers.commands import command, one_line_error, run
from tests.helpers.controllers import controller
from tests.helpers.ends import eventually
from tests.helpers.labs import specification
from tests.helpers.monitoring import Receiver, get

AWAY = "http://127.0.0.1:9"
NANOSECONDS = re.compile(r"[0-9]{19}")


def gauges(*names):
    return [GaugeMetricFamily(name, "a figure", value=1.5) for name in names]


def metrics():
    counter = CounterMetricFamily("openmrc_reports", "Reports.", labels=["outcome"])
    counter.add_metric(["sent"], 7)
    counter.add_metric(["failed"], 2)
    return [counter, *gauges("openmrc_devices")]


def only(value, *names):
    """A message of these fields and no others: proto3's JSON ignores unknown ones without a word."""
    assert isinstance(value, dict)
    assert set(value) == set(names)
    return [value[name] for name in names]


def attributes(found):
    pairs = {}
    for each in found:
        key, value = only(each, "key", "value")
        [text] = only(value, "stringValue")
        assert isinstance(key, str)
        assert isinstance(text, str)
        assert key not in pairs
        pairs[key] = text
    return pairs


def samples(content):
    """Name, labels and value of every point of a request, as the specification of OTLP has its JSON."""
    [[resource_metrics]] = only(content, "resourceMetrics")
    resource, [scope_metrics] = only(resource_metrics, "resource", "scopeMetrics")
    of = attributes(*only(resource, "attributes"))
    assert {"service.name", "service.instance.id", "service.version"} <= set(of)
    scope, found = only(scope_metrics, "scope", "metrics")
    assert only(scope, "name", "version")[0] == "openmrc"
    points = {}
    for metric in found:
        kind = "sum" if "sum" in metric else "gauge"
        name, description, data = only(metric, "name", "description", kind)
        assert description
        if kind == "sum":
            rows, temporality, monotonic = only(data, "dataPoints", "aggregationTemporality", "isMonotonic")
            assert (temporality, monotonic) == (2, True)
            assert name.endswith("_total")
        else:
            [rows] = only(data, "dataPoints")
        assert rows
        for row in rows:
            times = ["startTimeUnixNano", "timeUnixNano"] if kind == "sum" else ["timeUnixNano"]
            labels, *moments, value = only(row, "attributes", *times, "asDouble")
            # 64-bit integers are texts.
            assert all(NANOSECONDS.fullmatch(moment) for moment in moments)
            assert moments == sorted(moments)
            key = (name, *sorted(attributes(labels).items()))
            assert key not in points
            points[key] = value
    return of, points


def prometheus_samples(text):
    found = set()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"(\w+)(?:\{(.*)\})? ", line).groups()
            found.add((name, *sorted(re.findall(r'(\w+)="([^"]*)"', labels or ""))))
    return found


def test_counters_and_gauges_have_the_form_of_the_specification():
    otlp = Otlp(AWAY, "openmrc-agent", "h3", {"openmrc.fabric": "one"})
    content = json.loads(json.dumps(otlp.body(metrics(), time.time_ns()), allow_nan=False))
    of, points = samples(content)
    assert of["service.instance.id"] == "h3"
    assert of["openmrc.fabric"] == "one"
    assert points == {
        ("openmrc_reports_total", ("outcome", "sent")): 7.0,
        ("openmrc_reports_total", ("outcome", "failed")): 2.0,
        ("openmrc_devices",): 1.5,
    }


def test_numbers_that_json_does_not_have_are_texts():
    family = GaugeMetricFamily("openmrc_x", "x", labels=["of"])
    for value in (math.nan, math.inf, -math.inf):
        family.add_metric([str(value)], value)
    _, points = samples(Otlp(AWAY, "a", "b").body([family], time.time_ns()))
    assert list(points.values()) == ["NaN", "Infinity", "-Infinity"]


def test_a_clock_that_is_set_back_makes_no_counter_that_ends_before_it_begins():
    samples(Otlp(AWAY, "a", "b").body(metrics(), 10**18))


@pytest.mark.parametrize(
    ("url", "posts"),
    [
        ("http://c:4318", "http://c:4318/v1/metrics"),
        ("http://c:4318/", "http://c:4318/v1/metrics"),
        ("https://c/otlp/v1/metrics", "https://c/otlp/v1/metrics"),
        ("https://c/prefix", "https://c/prefix/v1/metrics"),
    ],
)
def test_the_path_is_added_where_it_is_not_there(url, posts):
    assert Otlp(url, "a", "b").url == posts


def test_a_password_of_the_address_is_not_shown():
    assert "secret" not in Otlp("http://me:secret@c:4318", "a", "b").shown


def test_headers_come_from_the_environment(monkeypatch):
    monkeypatch.setenv(exporting.HEADERS, "api-key=a%20b, tenant=7")
    assert Otlp(AWAY, "a", "b")._headers == {"api-key": "a b", "tenant": "7"}
    for wrong in ("api-key", "=x"):
        monkeypatch.setenv(exporting.HEADERS, wrong)
        with pytest.raises(ArgumentError, match="NAME=VALUE"):
            Otlp(AWAY, "a", "b")


@pytest.mark.parametrize("url", ["collector:4318", "grpc://c:4317", "http://", "http://c:x", "http://c/?a=b"])
def test_what_is_no_address_is_refused_in_one_line(tmp_path, url):
    file = specification(tmp_path, "refused")
    done = run("controller", file, "--database", tmp_path / "a.db", "--port", 0, "--otlp", url)
    assert one_line_error(done)


def test_a_receiver_that_is_away_is_asked_less_and_less():
    otlp = Otlp(AWAY, "a", "b")
    assert otlp.wait_s() == exporting.PERIOD_S
    longest = []
    for failures in range(1, 12):
        otlp._failures = failures
        longest.append(max(otlp.wait_s() for _ in range(50)))
    assert longest[0] < 2 * exporting.PERIOD_S
    assert MOST_WAIT_S / 2 <= longest[-1] <= MOST_WAIT_S


def test_the_time_that_a_receiver_asks_for_is_kept():
    def asked(value):
        return exporting._retry_after(httpx.Response(429, headers={"retry-after": value}))

    assert [asked(value) for value in ("7", "1e9", "-3", "nan", "Wed, 21 Oct 2026 07:28:00 GMT")] == [
        *(7.0, MOST_WAIT_S),
        *(0.0, 0.0, 0.0),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{}",
        b"\xff",
        b"[]",
        b"null",
        b'{"partialSuccess": 5}',
        b'{"partialSuccess": {"rejectedDataPoints": []}}',
    ],
)
def test_answers_of_any_kind_are_taken(answer):
    assert exporting._rejected(answer) is None


def test_rejected_points_are_told():
    answer = b'{"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}'
    assert exporting._rejected(answer) == "3 points rejected: too old"


def test_a_sender_goes_on_after_every_failure():
    with Receiver() as receiver:
        broken = [True]

        def collect():
            if broken.pop():
                broken[:] = [False]
                raise ValueError("not yet")
            broken[:] = [False]
            return metrics()

        otlp = Otlp(receiver.url, "a", "b", period_s=0.02)
        receiver.code = 503
        with Sender(otlp, collect):
            assert eventually(lambda: receiver.refused > 1, 20)
            assert otlp.error == "HTTP 503"
            receiver.code = 200
            assert eventually(lambda: len(receiver.requests) > 2, 20)
            assert eventually(lambda: otlp.error is None, 20)
        path, content = receiver.requests[0]
        assert path == "/v1/metrics"
        assert len(samples(content)[1]) == 3


def test_a_sender_ends_though_its_receiver_does_not_answer():
    with Receiver() as receiver:
        receiver.hold.clear()
        began = time.monotonic()
        sender = Sender(Otlp(receiver.url, "a", "b"), metrics)
        time.sleep(0.2)
        sender.close()
        assert not sender._thread.is_alive()
        assert time.monotonic() - began < exporting._TIMEOUT_S


def test_an_answer_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(exporting, "_TIMEOUT_S", 0.5)

    async def trickle(reader, writer):
        with suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()

    async def told():
        server = await asyncio.start_server(trickle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        otlp = Otlp(f"http://127.0.0.1:{port}", "a", "b")
        async with httpx.AsyncClient(trust_env=False) as http:
            found = await otlp._send(http, otlp.body(metrics(), time.time_ns()))
        server.close()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
        return found

    assert asyncio.run(told())[0].startswith("no answer within")


def test_controller_and_agent_send_what_their_metrics_have(tmp_path):
    file = specification(tmp_path, "told")
    with (
        Receiver() as receiver,
        controller(file, tmp_path / "a.db", "--otlp", receiver.url, token=False) as (address, _),
    ):
        options = ("--host", "h3", "--metrics", "0", "--otlp", receiver.url)
        with command("agent", address, *options) as agent:
            page = agent.line().partition(": ")[2].strip()

            def of(service):
                found = [samples(content) for _, content in receiver.requests]
                return [(of, points) for of, points in found if of["service.name"] == service]

            assert eventually(lambda: of("openmrc-controller") and of("openmrc-agent"), 60)
            [(resource, points), *_] = of("openmrc-agent")
            assert resource["service.instance.id"] == "h3"
            assert set(points) == prometheus_samples(get(page).text)
            [(resource, points), *_] = of("openmrc-controller")
            assert resource["openmrc.fabric"] == "told"
            assert set(points) == prometheus_samples(get(f"{address}/metrics").text)


def test_an_agent_reports_while_its_receiver_hangs_and_ends_at_once(tmp_path):
    file = specification(tmp_path, "hangs")
    with (
        Receiver() as receiver,
        controller(file, tmp_path / "a.db", "--otlp", receiver.url, token=False) as (address, running),
    ):
        receiver.hold.clear()
        with command("agent", address, "--host", "h3", "--metrics", "0", "--otlp", receiver.url) as agent:
            page = agent.line().partition(": ")[2].strip()

            def sent():
                return float(re.search(r'reports_total\{outcome="sent"\} (\S+)', get(page).text)[1])

            assert eventually(lambda: sent() >= 4, 60)
            agent.interrupt()
            assert agent.wait() == 0
        running.interrupt()
        assert running.wait() == 0
