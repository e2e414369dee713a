"""Metrics as a real Prometheus scrapes them; the dashboard and the rules that stand on them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from openmrc.operate import monitoring
from openmrc.operate.model import Action, JobSeen, Report, Request
from tests.helpers.commands import command, one_line_error, run
from tests.helpers.controllers import BOOT, SECRET, controller, operator
from tests.helpers.controllers import agent as agent_client
from tests.helpers.ends import eventually
from tests.helpers.labs import specification
from tests.helpers.monitoring import get, prometheus
from tests.helpers.programs import need_tool

METRIC = re.compile(r"\bopenmrc_\w+")


@pytest.fixture
def written(tmp_path):
    """The directory of `openmrc fabric dashboards`."""
    out = tmp_path / "monitoring"
    made = run("fabric", "dashboards", "--out", out, "--agent-metrics", "h0:9100", "--json")
    assert made.returncode == 0, made.stderr
    assert all(Path(name).exists() for name in json.loads(made.stdout)["files"])
    return out


def test_promtool_accepts_the_rules_and_their_unit_tests_pass(written):
    need_tool("promtool", "prometheus")
    shutil.copy(Path(__file__).with_name("alerts_test.yaml"), written)
    for check in (
        ["check", "rules", monitoring.RULES_FILE],
        ["check", "config", monitoring.SCRAPE_FILE],
        ["test", "rules", "alerts_test.yaml"],
    ):
        checked = subprocess.run(["promtool", *check], cwd=written, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_rule_has_a_unit_test_that_it_is_raised_and_one_that_it_is_not():
    text = Path(__file__).with_name("alerts_test.yaml").read_text()
    for alert in monitoring.ALERTS:
        assert text.count(f"alertname: {alert.name}") >= 2, alert.name


def test_the_dashboard_fits_its_grid_and_asks_no_other_site(written):
    text = (written / monitoring.DASHBOARD_FILE).read_text()
    board = json.loads(text)
    assert "://" not in text
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells
        assert all(x < 24 for x, _ in own)
        cells |= own
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_a_directory_that_is_not_empty_and_targets_that_are_none_are_refused(written, tmp_path):
    assert "not empty" in one_line_error(run("fabric", "dashboards", "--out", written))
    for wrong in ("h0", "h0:0", "h0:99999", "http://h0:1", "a b:1", "x'y:1"):
        refused = run("fabric", "dashboards", "--out", tmp_path / "x", "--agent-metrics", wrong)
        assert "a target is HOST:PORT" in one_line_error(refused)
    assert monitoring.is_target("[2001:db8::1]:9100")


def test_prometheus_scrapes_controller_and_agent_and_finds_every_metric_that_is_used(tmp_path, monkeypatch):
    need_tool("prometheus", "prometheus")
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))
    file = specification(tmp_path, "scraped")
    (tmp_path / "h3").write_text(f"h3 {token_of_h3(file)}\n")
    (tmp_path / "h3").chmod(0o600)
    # Nobody takes the alerts at this address: the metric is there all the same.
    options = ("--alertmanager", "http://127.0.0.1:1")
    with (
        controller(file, tmp_path / "c.db", *options) as (address, _),
        command("agent", address, "--token-file", tmp_path / "h3", "--metrics", "0") as agent,
    ):
        exported = re.search(r"http://(\S+)/metrics", agent.line())[1]
        targets = [address.partition("//")[2]], [exported]
        (tmp_path / "rules.yaml").write_text(monitoring.rules())
        (tmp_path / "prometheus.yaml").write_text(
            monitoring.scrape(*targets, "rules.yaml").replace("5s", "500ms")
        )
        with prometheus(tmp_path, tmp_path / "prometheus.yaml") as server:

            def value(query):
                answer = get(f"{server}/api/v1/query", query=query)
                return [float(row["value"][1]) for row in answer.json()["data"]["result"]] if answer else []

            assert eventually(lambda: value("openmrc_fabric_hosts_heard") == [1.0], 60)
            assert eventually(lambda: value("sum(up)") == [2.0], 60)
            with agent_client(address, "h4") as client:
                goodput = [JobSeen(job="llama", processes=1, received=[5, 5])]
                client.report(Report(host="h4", boot=BOOT, sequence=1, goodput=goodput))
            assert value('openmrc_fabric_links{state="unknown"}') == [64.0]
            link = "p0/t0-0:up0"
            with operator(address) as client:
                assert client.act(Request(action=Action.DENY, what=link, why="a test")).done
            assert eventually(
                lambda: value('openmrc_fabric_least_usable_uplinks_ratio{plane="0"}') == [0.75], 60
            )
            assert eventually(lambda: value("openmrc_agent_denied_links") == [1.0], 60)
            used = set(METRIC.findall(monitoring.rules() + monitoring.dashboard()))
            assert len(used) > 15
            for name in sorted(used):
                assert eventually(lambda name=name: value(f"count({name})") not in ([], [0.0]), 60), name
            for panel in monitoring.PANELS:
                assert get(f"{server}/api/v1/query", query=panel.expression), panel.title
            [group] = get(f"{server}/api/v1/rules").json()["data"]["groups"]
            assert {rule["name"] for rule in group["rules"]} == {alert.name for alert in monitoring.ALERTS}
            assert {rule.get("lastError") for rule in group["rules"]} <= {None, ""}
            assert SECRET not in get(f"{address}/metrics").text


def token_of_h3(file):
    """The token of h3."""
    secret = file.parent / "operators"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    printed = run("controller", file, "--token-file", secret, "--agent-tokens", "h3")
    return printed.stdout.split()[1]
