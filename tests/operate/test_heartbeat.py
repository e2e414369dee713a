"""When an agent reports: at once if something has changed, else often enough to be known as alive."""

import itertools

import pytest

from openmrc.errors import ConnectError
from openmrc.fabric import Fabric, Specification
from openmrc.operate import agent as agent_module
from openmrc.operate.agent import HEARTBEAT_S, PERIOD_S, Agent
from openmrc.operate.model import Reply

FABRIC = Fabric(
    Specification.model_validate(
        {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    )
)


class Controller:
    """What an agent talks to: it keeps the reports, and may be away."""

    address = "http://127.0.0.1:1"

    def __init__(self):
        self.reports = []
        self.away = False

    def report(self, report):
        if self.away:
            raise ConnectError("the controller is away")
        self.reports.append(report)
        return Reply(deny_version=0)

    def close(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    """The agent's monotonic clock, in seconds; no device is there."""
    now = [1000.0]
    monkeypatch.setattr(agent_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(agent_module, "devices", list)
    return now


def turns(agent, clock, count):
    for _ in range(count):
        agent.turn()
        clock[0] += PERIOD_S


def test_what_has_not_changed_is_said_once_in_a_heartbeat(clock):
    controller = Controller()
    agent = Agent(FABRIC, ["h0"], lambda _: controller)
    seconds = 20
    turns(agent, clock, round(seconds / PERIOD_S))
    assert len(controller.reports) == pytest.approx(seconds / HEARTBEAT_S, abs=1)
    assert [report.sequence for report in controller.reports] == list(range(1, len(controller.reports) + 1))
    assert len({report.boot for report in controller.reports}) == 1


def test_a_change_is_said_at_once_and_the_next_heartbeat_counts_from_there(clock, monkeypatch):
    controller = Controller()
    agent = Agent(FABRIC, ["h0"], lambda _: controller)
    turns(agent, clock, 2)
    assert len(controller.reports) == 1
    versions = itertools.count(1)
    for wanted in (2, 3, 4):
        agent.deny_version = next(versions)
        turns(agent, clock, 1)
        assert len(controller.reports) == wanted
    turns(agent, clock, round(HEARTBEAT_S / PERIOD_S) - 1)
    assert len(controller.reports) == 4
    turns(agent, clock, 1)
    assert len(controller.reports) == 5


def test_after_a_failure_all_is_said_again(clock):
    controller = Controller()
    agent = Agent(FABRIC, ["h0", "h1"], lambda _: controller)
    turns(agent, clock, 1)
    assert [report.host for report in controller.reports] == ["h0", "h1"]
    controller.away = True
    turns(agent, clock, round(HEARTBEAT_S / PERIOD_S) + 1)
    assert agent.counts.reports["failed"] > 0
    assert not agent.counts.connected
    controller.away = False
    turns(agent, clock, 1)
    assert [report.host for report in controller.reports[2:]] == ["h0", "h1"]
    assert agent.counts.connected
