"""Alerts of faults: what an Alertmanager gets, once, with its end, and what happens while there is none."""

import asyncio
import time
from datetime import datetime

import pytest

from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.operate import alerts as alerting
from openmrc.operate.alerts import EXPIRES_S, FORGET_S, MOST_ALERTS, RESEND_S, Alerts
from openmrc.operate.client import Client
from openmrc.operate.model import NamedFault, Suspect
from tests.helpers.commands import one_line_error, run
from tests.helpers.controllers import controller, report_all
from tests.helpers.ends import eventually
from tests.helpers.labs import RING, specification
from tests.helpers.monitoring import Receiver, alertmanager, get

PAIRS = list(zip(RING, RING[1:] + RING[:1], strict=True))
AWAY = "http://127.0.0.1:9"


def fault(name="p0/t0-0:up1", kind="link", **fields):
    given = {
        "id": 1,
        "kind": kind,
        "name": name,
        "since": 100.0,
        "confidence": 0.99,
        "loss": 1.0,
        "evidence_nats": 50.0,
        "paths": 4,
        "suspects": [],
        "cost_bps": 1e11,
        **fields,
    }
    return NamedFault(**given)


def take(alerts, target, at):
    """As if the target had taken what is due."""
    due = alerts.due(target, at)
    target.taken |= {key: (version, at) for key, version in due}
    return [key for key, _ in due]


def seconds(text):
    return datetime.fromisoformat(text).timestamp()


def test_an_alert_has_the_labels_of_its_fault_and_both_times():
    alerts = Alerts([AWAY], "fabric", "http://localhost:1/")
    alerts.look([fault()], 100.0)
    [(key, _)] = alerts.due(alerts.targets[0], 0.0)
    [alert] = alerts.body([key], 101.0)
    assert alert["labels"] == {
        "alertname": "OpenmrcFault",
        "fabric": "fabric",
        "kind": "link",
        "component": "p0/t0-0:up1",
        "severity": "warning",
    }
    assert seconds(alert["startsAt"]) == 100.0
    assert seconds(alert["endsAt"]) == 101.0 + EXPIRES_S
    assert alert["generatorURL"] == "http://localhost:1/"
    alerts.look([], 130.0)
    [ended] = alerts.body([key], 131.0)
    assert ended["labels"] == alert["labels"]
    assert seconds(ended["endsAt"]) == 130.0


def test_each_target_gets_a_fault_once_then_reminders_then_its_end():
    alerts = Alerts([AWAY, "http://127.0.0.1:10"], "fabric")
    one, two = alerts.targets
    alerts.look([fault()], 100.0)
    assert take(alerts, one, 0.0) == [("link", "p0/t0-0:up1")]
    assert take(alerts, one, 1.0) == []
    alerts.look([fault(loss=0.5)], 101.0)
    assert take(alerts, one, 2.0) == []
    assert len(take(alerts, one, RESEND_S)) == 1
    alerts.look([], 130.0)
    assert len(take(alerts, one, RESEND_S + 1)) == 1
    assert take(alerts, one, 10 * RESEND_S) == []
    # The other was away for all of it: it gets the end, and then nothing is kept.
    assert len(take(alerts, two, 0.0)) == 1
    alerts.look([], 131.0)
    assert alerts.body([("link", "p0/t0-0:up1")], 131.0) == []
    # The same link again is the same alert again.
    alerts.look([fault(id=2, since=200.0)], 200.0)
    assert take(alerts, one, 20 * RESEND_S) == [("link", "p0/t0-0:up1")]


def test_suspects_in_another_order_are_the_same_alert():
    alerts = Alerts([AWAY], "fabric")
    suspects = [Suspect(kind="link", name=name, probability=0.5) for name in ("b", "a")]
    alerts.look([fault("b", "unknown", suspects=suspects)], 1.0)
    assert take(alerts, alerts.targets[0], 0.0) == [("unknown", "a,b")]
    alerts.look([fault("a", "unknown", suspects=suspects[::-1])], 2.0)
    assert take(alerts, alerts.targets[0], 1.0) == []


def test_what_is_kept_for_a_target_that_is_away_has_limits():
    alerts = Alerts([AWAY], "fabric")
    alerts.look([fault(f"link {number}") for number in range(MOST_ALERTS + 50)], 1.0)
    assert sum(1 for key in alerts._alerts) == MOST_ALERTS
    alerts.look([], 2.0)
    assert 0 < len(alerts.due(alerts.targets[0], 0.0)) <= 200
    alerts.look([], 2.0 + FORGET_S + 1)
    assert alerts.due(alerts.targets[0], 0.0) == []


@pytest.mark.parametrize("wrong", ["alertmanager:9093", "ftp://a", "http://", "http://a:x", "http://a/?b=c"])
def test_an_address_that_is_none_is_refused(wrong, tmp_path):
    with pytest.raises(ArgumentError):
        Alerts([wrong], "fabric")
    file = specification(tmp_path, "wrong")
    refused = run("controller", file, "--database", tmp_path / "c.db", "--port", "0", "--alertmanager", wrong)
    one_line_error(refused)


def test_a_password_in_the_address_is_sent_and_not_shown():
    [target] = Alerts(["http://me:secret@127.0.0.1:9/am/"], "fabric").targets
    assert target.shown == "http://127.0.0.1:9/am"
    assert "secret" in target.url


def test_a_target_that_fails_or_hangs_delays_no_other_and_gets_everything_later(monkeypatch):
    monkeypatch.setattr(alerting, "MOST_WAIT_S", 0.1)
    monkeypatch.setattr(alerting, "PERIOD_S", 0.01)
    opened = [fault()]

    async def exchange(failing, hanging, working):
        alerts = Alerts([failing.url, hanging.url, working.url], "fabric")
        failing.code = 503
        hanging.hold.clear()
        task = asyncio.create_task(alerts.run(lambda: opened))

        async def until(condition):
            end = time.monotonic() + 60
            while not condition() and time.monotonic() < end:
                await asyncio.sleep(0.01)
            assert condition()

        await until(lambda: working.alerts())
        opened.clear()
        await until(lambda: len(working.alerts()) == 2 and failing.refused > 1)
        assert alerts.targets[0].error == "HTTP 503"
        failing.code = 200
        hanging.hold.set()
        await until(lambda: failing.alerts() and len(hanging.alerts()) >= 2)
        await until(lambda: alerts.targets[0].error is None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with Receiver() as failing, Receiver() as hanging, Receiver() as working:
        asyncio.run(exchange(failing, hanging, working))
        for receiver in (failing, hanging, working):
            *_, last = receiver.alerts()
            assert seconds(last["endsAt"]) <= time.time()
            assert {path for path, _ in receiver.requests} == {"/api/v2/alerts"}
        assert len(working.alerts()) == 2


def test_a_controller_tells_alertmanager_of_a_fault_and_of_its_end(tmp_path):
    file = specification(tmp_path, "alerted")
    fabric = Fabric.load(file)
    link = fabric.paths("h0", "h4")[0].links[1]
    with alertmanager(tmp_path) as manager, Receiver() as receiver:
        options = ("--alertmanager", manager, "--alertmanager", receiver.url, "--alertmanager", AWAY)
        with controller(file, tmp_path / "c.db", *options) as (address, _), Client(address) as reader:

            def known():
                found = get(f"{manager}/api/v2/alerts").json()
                return [(each["labels"]["component"], each["status"]["state"]) for each in found]

            def accused():
                report_all(address, fabric, PAIRS, [link])
                return (link, "active") in known()

            assert eventually(accused, 60)
            # One direction of the link may have been accused first.
            alerts = get(f"{manager}/api/v2/alerts").json()
            [alert, *_] = [each for each in alerts if each["labels"]["component"] == link]
            assert alert["labels"]["fabric"] == "alerted"
            known_faults = {str(each.id): each for each in reader.faults() + reader.faults(over=True)}
            found = known_faults[alert["annotations"]["fault"]]
            assert found.name == link
            assert abs(seconds(alert["startsAt"]) - found.since) < 0.01

            def over():
                report_all(address, fabric, PAIRS)
                return known() == []

            assert eventually(over, 60)
            assert eventually(
                lambda: [
                    a
                    for a in receiver.alerts()
                    if a["labels"]["component"] == link and seconds(a["endsAt"]) <= time.time()
                ],
                60,
            )
            assert reader.status().faults == 0
            assert 'openmrc_controller_alertmanager_up{target="http://127.0.0.1:9"} 0.0' in metrics(address)
            assert f'openmrc_controller_alertmanager_up{{target="{receiver.url}"}} 1.0' in metrics(address)


def metrics(address):
    return get(f"{address}/metrics").text
