"""A controller as a process: faults are named, decisions are made and kept, strangers achieve nothing."""

import contextlib
import json
import shutil
import socket
import sqlite3
import subprocess

import httpx
import pytest

from openmrc.errors import ConnectError
from openmrc.fabric import Fabric
from openmrc.operate.client import Client, RefusedError
from openmrc.operate.events import unpacked
from openmrc.operate.holder import has_gone, parsed
from openmrc.operate.model import MOST_BODY, MOST_NAMES, Action, Request
from tests.helpers.commands import one_line_error, run
from tests.helpers.controllers import (
    SECRET,
    agent,
    controller,
    operator,
    postgresql,
    report_all,
    seen,
)
from tests.helpers.ends import eventually
from tests.helpers.labs import RING, specification

PAIRS = list(zip(RING, RING[1:] + RING[:1], strict=True))


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return specification(tmp_path_factory.mktemp("fabric"), "operated")


@pytest.fixture(scope="module")
def fabric(file):
    return Fabric.load(file)


@pytest.fixture
def running(file, tmp_path):
    with controller(file, tmp_path / "c.db") as (address, _):
        yield address


def uplink(fabric, number=0):
    return fabric.paths("h0", "h4")[number].links[1]


def wanted(action, what, **fields):
    return Request(action=action, what=what, why="the test", **fields)


def until(condition):
    assert eventually(condition, 60)


def test_a_broken_cable_is_named_shown_counted_and_over_when_packets_pass_again(fabric, running):
    link = uplink(fabric)
    with Client(running) as reader:

        def good():
            report_all(running, fabric, PAIRS)
            return reader.link(link).evidence == "good"

        until(good)
        assert reader.faults() == []

        def named():
            report_all(running, fabric, PAIRS, [link])
            return [(fault.kind, fault.name) for fault in reader.faults()] == [("link", link)]

        until(named)
        [fault] = reader.faults()
        assert fault.confidence > 0.9
        assert fault.cost_bps == fabric.port_rate
        assert reader.link(link).evidence == "broken"
        text = httpx.get(f"{running}/metrics", trust_env=False).text
        assert 'openmrc_fabric_faults{kind="link"} 1.0' in text
        assert 'openmrc_fabric_links{state="broken"} 1.0' in text
        if shutil.which("promtool"):
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True, text=True
            )
            assert (checked.returncode, checked.stderr) == (0, "")

        def over():
            report_all(running, fabric, PAIRS)
            return reader.faults() == []

        until(over)
        # Reports come one after the other: between two, another may be suspected, and the link look lossy.
        [ended] = [each for each in reader.faults(over=True) if each.id == fault.id]
        assert ended.name == link
        assert ended.until > ended.since
        # Beside other programs reports may come so late that nothing is known between two.
        history = [change.evidence for change in reader.link(link).history if change.evidence != "unknown"]
        assert (history[0], history[-1]) == ("good", "good")
        assert "broken" in history


def test_silence_is_no_repair(fabric, file, tmp_path):
    link = uplink(fabric)
    with controller(file, tmp_path / "c.db") as (address, _), Client(address) as reader:
        report_all(address, fabric, PAIRS, [link])
        until(lambda: [fault.name for fault in reader.faults()] == [link])
        until(lambda: reader.link(link).evidence == "unknown")
        assert [fault.name for fault in reader.faults()] == [link]
        assert all(host.silent for host in reader.hosts())


def test_reading_needs_no_token_and_changing_needs_the_operators(fabric, running):
    link = uplink(fabric)
    for client in (Client(running), Client(running, bearer="x" * 20), agent(running, "h0")):
        with client:
            assert client.status().fabric == "operated"
            with pytest.raises(RefusedError, match="operators' token"):
                client.act(wanted(Action.DENY, link))
    with operator(running) as client:
        assert client.act(wanted(Action.DENY, link)).done
        assert client.link(link).decision == "denied"
        assert client.status().decisions == {"denied": 1, "drained": 0}


def test_a_stolen_token_speaks_for_its_own_host_only(fabric, running):
    with agent(running, "h1") as thief:
        with pytest.raises(RefusedError, match="not the token of h0's agent"):
            thief.report(seen(fabric, "h0", "h4"))
        thief.report(seen(fabric, "h1", "h5"))
    with Client(running) as nobody, pytest.raises(RefusedError, match="not the token"):
        nobody.report(seen(fabric, "h0", "h4"))
    with Client(running) as reader:
        assert [host.host for host in reader.hosts()] == ["h1"]


def post(address, body, **headers):
    given = {"Authorization": f"Bearer {SECRET}", "Content-Type": "application/json", **headers}
    return httpx.post(f"{address}/api/v1/reports", content=body, headers=given, trust_env=False)


def test_malformed_and_huge_reports_are_refused_and_nothing_else_suffers(fabric, running):
    good = seen(fabric, "h0", "h4").model_dump()
    for body, code in [
        (b"", 422),
        (b"\xff\xfe", 422),
        (b"[" * 100_000, 422),
        (json.dumps({**good, "host": "h0<script>"}).encode(), 422),
        (json.dumps({**good, "dead": [[1, 1 << 40]]}).encode(), 422),
        (json.dumps({**good, "alive": [[1, 1]] * 5000}).encode(), 422),
        (b'{"sequence":' + b"9" * 5000 + b"}", 422),
        (b" " * (MOST_BODY + 1), 413),
    ]:
        assert post(running, body).status_code == code, body[:60]
    assert post(running, b"{}", **{"Content-Encoding": "gzip"}).status_code == 415
    assert post(running, json.dumps(good).encode(), **{"Content-Type": "text/plain"}).status_code == 415
    with agent(running, "h0") as client:
        with pytest.raises(RefusedError, match="EV"):
            client.report(seen(fabric, "h0", "h4").model_copy(update={"dead": [(4, 0xFFFFFFFF)]}))
        with pytest.raises(RefusedError, match="h0 to h15"):
            client.report(seen(fabric, "h0", "h4").model_copy(update={"dead": [(4000, 0)]}))
        with pytest.raises(RefusedError, match="plane 9"):
            client.report(seen(fabric, "h0", "h4", ports_down=[9]))
        assert client.hosts() == []
        # A newer agent's fields are ignored.
        newer = {**good, "what_is_new": [1, 2]}
        assert httpx.post(
            f"{running}/api/v1/reports",
            json=newer,
            headers=dict(client._http.headers),
            trust_env=False,
        ).is_success
        assert [host.host for host in client.hosts()] == ["h0"]


def test_a_request_that_never_ends_holds_nobody_up(running):
    parts = running.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            slow = stack.enter_context(socket.create_connection((parts[0], int(parts[1]))))
            slow.sendall(b"POST /api/v1/reports HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        with Client(running) as reader:
            assert reader.status().faults == 0


def test_a_page_of_another_site_reads_nothing(running):
    answer = httpx.get(f"{running}/api/v1/status", headers={"Host": "attacker.example"}, trust_env=False)
    assert answer.status_code == 421
    page = httpx.get(f"{running}/", trust_env=False)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert httpx.get(f"{running}/page/..%2fapi.py", trust_env=False).status_code == 404


def test_an_older_report_does_not_undo_a_newer_one(fabric, running):
    with agent(running, "h0") as client:
        client.report(seen(fabric, "h0", "h4", sequence=5))
        client.report(seen(fabric, "h0", "h4", [uplink(fabric)], sequence=4))
        assert client.hosts()[0].dead_paths == 0


def test_a_wrong_clock_of_a_host_is_shown_and_decides_nothing(fabric, running):
    with agent(running, "h0") as client:
        client.report(seen(fabric, "h0", "h4", time=1e9))
        [host] = client.hosts()
        assert host.clock_off_s < -3600
        assert not host.silent


def test_denying_stops_at_the_floor_unless_forced_and_a_dry_run_changes_nothing(fabric, running):
    t0 = "p0/t0-0"
    links = [port.link for port in fabric.ports(fabric.switch(t0)) if port.is_uplink]
    with operator(running) as client:
        assert client.act(wanted(Action.DENY, links[0], dry_run=True)).reason == ""
        assert client.link(links[0]).decision == "none"
        assert [client.act(wanted(Action.DENY, link)).done for link in links] == [True, True, False, False]
        refused = client.act(wanted(Action.DENY, links[2]))
        assert refused.reason == f"{t0} would have 1 of 4 uplinks left; the floor is 2"
        assert client.act(wanted(Action.DENY, links[2], force=True)).done
        assert not client.act(wanted(Action.DENY, links[2])).done
        assert client.act(wanted(Action.ALLOW, links[2])).done
        with pytest.raises(RefusedError, match="no link"):
            client.act(wanted(Action.DENY, "p0/t0-0:up9"))
        log = client.decisions()
    assert [each.done for each in log[:4]] == [True, False, True, False]
    assert {each.why for each in log} == {"the test"}


def test_a_drained_switch_is_empty_when_every_host_has_the_list_and_none_uses_it(fabric, running):
    switch = "p0/t1-0"
    out = [port.link for port in fabric.ports(fabric.switch(switch))]
    with operator(running) as client:
        report_all(running, fabric, PAIRS)
        assert client.act(wanted(Action.DRAIN, switch)).done
        replies = report_all(running, fabric, PAIRS)
        assert all(set(reply.deny) == set(out) for reply in replies)
        until(lambda: client.status().drains[0].users != [])
        assert client.status().drains[0].state == "draining"
        version = replies[0].deny_version

        def empty():
            for src, dst in PAIRS:
                kept = seen(fabric, src, dst, out, deny_version=version).model_copy(update={"dead": []})
                with agent(running, src) as reporter:
                    assert reporter.report(kept).deny is None
            return client.status().drains[0].state == "empty"

        until(empty)
        assert not client.act(wanted(Action.DRAIN, switch)).done
        assert client.act(wanted(Action.UNDRAIN, switch)).done
        assert client.status().drains == []
        assert client.link(out[0]).decision == "none"


def test_a_broken_link_is_denied_by_itself_and_comes_back_when_it_is_good(fabric, file, tmp_path):
    link = uplink(fabric)
    options = ("--automatic", "on", "--hold", "1s")
    with controller(file, tmp_path / "c.db", *options) as (address, _), Client(address) as reader:

        def denied():
            report_all(address, fabric, PAIRS, [link])
            return reader.link(link).decision == "denied"

        until(denied)
        assert reader.link(link).denied_by == "controller"

        def allowed():
            report_all(address, fabric, PAIRS)
            return reader.link(link).decision == "none"

        until(allowed)
        assert [each.action for each in reader.decisions()] == ["allow", "deny"]
        assert all(each.who == "controller" for each in reader.decisions())


def test_a_dry_run_says_what_would_be_denied_once(fabric, running):
    link = uplink(fabric)
    with Client(running) as reader:

        def said():
            report_all(running, fabric, PAIRS, [link])
            return reader.decisions() != []

        until(said)
        for _ in range(5):
            report_all(running, fabric, PAIRS, [link])
        [decision] = reader.decisions()
        assert (decision.what, decision.dry_run, decision.done) == (link, True, False)
        assert reader.link(link).decision == "none"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_decisions_faults_and_history_outlive_the_controller(fabric, file, tmp_path, kind):
    link = uplink(fabric)
    with contextlib.ExitStack() as stack:
        database = tmp_path / "c.db" if kind == "sqlite" else stack.enter_context(postgresql(tmp_path))
        with controller(file, database) as (address, process), operator(address) as client:
            report_all(address, fabric, PAIRS, [link])
            until(lambda: [fault.name for fault in client.faults()] == [link])
            assert client.act(wanted(Action.DENY, uplink(fabric, 1))).done
            assert client.act(wanted(Action.DRAIN, "p1/t1-1")).done
            until(lambda: client.link(link).history != [])
            process.interrupt()
            assert process.wait() == 0
        with controller(file, database) as (address, _), operator(address) as client:
            assert client.link(uplink(fabric, 1)).denied_why == "the test"
            assert [drain.what for drain in client.status().drains] == ["p1/t1-1"]
            assert [fault.name for fault in client.faults()] == [link]
            assert len([each for each in client.decisions() if each.who == "operator"]) == 2
            assert "broken" in [change.evidence for change in client.link(link).history]
            # An agent that has not noticed gets the list anew.
            [reply] = report_all(address, fabric, PAIRS[:1])
            assert uplink(fabric, 1) in reply.deny


def test_a_killed_controller_is_followed_at_once_by_another_of_its_host(file, tmp_path):
    with controller(file, tmp_path / "c.db") as (_, first):
        refused = run("controller", file, "--port", 0, "--database", tmp_path / "c.db")
        assert refused.returncode == 1
        assert f"process {first.process.pid} of " in one_line_error(refused)
        assert "end it first" in one_line_error(refused)
        first.kill()
        with controller(file, tmp_path / "c.db") as (address, _), Client(address) as reader:
            assert reader.status().fabric == "operated"


@pytest.mark.parametrize("foreign", ["host", "boot", "processes"])
def test_a_controller_that_was_elsewhere_is_waited_for_until_its_lease_runs_out(file, tmp_path, foreign):
    with controller(file, tmp_path / "c.db") as (_, first):
        first.kill()
        first.wait()
        with contextlib.closing(sqlite3.connect(tmp_path / "c.db", isolation_level=None)) as other:
            [[text]] = other.execute("SELECT holder FROM openmrc_lease").fetchall()
            elsewhere = parsed(text)._replace(**{foreign: "another"})
            assert has_gone(parsed(text))
            assert not has_gone(elsewhere)
            other.execute("UPDATE openmrc_lease SET holder = ?", [str(elsewhere)])
        refused = run("controller", file, "--port", 0, "--database", tmp_path / "c.db")
        assert "end it first" in one_line_error(refused)
        with controller(file, tmp_path / "c.db", "--wait") as (address, _), Client(address) as reader:
            assert reader.status().fabric == "operated"


def test_a_decision_that_cannot_be_stored_is_not_made(fabric, file, tmp_path):
    link = uplink(fabric)
    with (
        controller(file, tmp_path / "c.db") as (address, _),
        operator(address) as client,
        contextlib.closing(sqlite3.connect(tmp_path / "c.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises((RefusedError, ConnectError), match=r"nothing was changed|timed out"):
            client.act(wanted(Action.DENY, link))
        other.execute("ROLLBACK")
        until(lambda: client.act(wanted(Action.DENY, link)).done or client.link(link).decision == "denied")
        report_all(address, fabric, PAIRS)
        until(lambda: client.status().store_error is None)


def test_what_the_fabric_has_no_more_is_forgotten_when_its_file_changes(fabric, file, tmp_path):
    with controller(file, tmp_path / "c.db") as (address, process), operator(address) as client:
        assert client.act(wanted(Action.DENY, "h15:p1")).done
        process.interrupt()
        process.wait()
    smaller = specification(tmp_path, "operated", hosts=8)
    with controller(smaller, tmp_path / "c.db") as (address, _), operator(address) as client:
        assert client.status().decisions["denied"] == 0
        assert client.status().hosts == 8


def test_events_come_as_they_happen(fabric, running):
    link = uplink(fabric)
    with Client(running) as listener, operator(running) as client:
        events = listener.events()
        kinds = {}

        def act():
            client.act(wanted(Action.DENY, link, who="<b>ada</b>"))

        import threading

        later = threading.Timer(0.5, act)
        later.start()
        while "decision" not in kinds:
            kind, content = next(events)
            kinds[kind] = content
        later.join()
        assert kinds["decision"]["who"] == "<b>ada</b>"
        changed = unpacked(kinds["map"]["cells"])
        assert link in [client.names(number)[0] for number, _ in changed]


def test_names_are_asked_for_in_parts(fabric, running):
    with Client(running) as client:
        info = client.fabric()
        names = client.names(0, MOST_NAMES)
        assert len(names) == info.cells
        assert client.names(7, 3) == names[7:10]
        assert client.names(info.cells - 1, 100) == names[-1:]
        assert client.names(1 << 40) == []
        assert client.link(names[5]).number == 5
        for first, count in ((-1, 1), (0, 0), (0, MOST_NAMES + 1)):
            with pytest.raises(RefusedError, match="query"):
                client.names(first, count)


def test_the_commands(fabric, running, monkeypatch, tmp_path):
    link = uplink(fabric)
    monkeypatch.setenv("OPENMRC_CONTROLLER", running)
    report_all(running, fabric, PAIRS)
    assert run("fabric", "status").returncode == 0
    refused = run("fabric", "link", "deny", link, "--why", "a test")
    assert refused.returncode == 1
    assert "operators' token" in one_line_error(refused)
    monkeypatch.setenv("OPENMRC_TOKEN", SECRET)
    assert (
        "would be done (1 link)" in run("fabric", "link", "deny", link, "--why", "a test", "--dry-run").stdout
    )
    assert run("fabric", "link", "deny", link, "--why", "a test").stdout == f"deny {link}: done (1 link)\n"
    shown = run("fabric", "link", "show", link, "--json")
    assert json.loads(shown.stdout)["decision"] == "denied"
    assert run("fabric", "drain", "p0/t1-9", "--why", "x").returncode == 1
    assert run("fabric", "link", "allow", link, "--why", "a test").returncode == 0
    assert "a test" in run("fabric", "log").stdout

    def validated(hosts, code, failed=()):
        """What ``fabric validate`` prints once it has this exit code: a report is good for seconds only."""
        printed = []

        def is_valid():
            report_all(running, fabric, PAIRS, failed)
            result = run("fabric", "validate", hosts)
            printed.append(result.stdout)
            return result.returncode == code

        until(is_valid)
        return printed[-1]

    assert validated("h0-h1,h4", 0).count("pass") == 3
    report_all(running, fabric, PAIRS)
    assert run("fabric", "validate", "h2").returncode == 5
    assert run("fabric", "validate", "h5-h2").returncode == 2

    def failed():
        report_all(running, fabric, PAIRS, [link])
        return run("fabric", "status").returncode == 1

    until(failed)
    assert link in run("fabric", "faults").stdout
    # While evidence comes in, another may be suspected too.
    events = [json.loads(line) for line in run("fabric", "events", "--json").stdout.splitlines()]
    assert link in [event["name"] for event in events]
    assert "1 of 4 uplinks of p0/t0-0 are out" in validated("h0", 3, [link])
    nobody = run("fabric", "status", "--controller", "http://127.0.0.1:9")
    assert "cannot reach the controller" in one_line_error(nobody)
    clear = run("fabric", "link", "allow", link, "--why", "x", "--controller", "http://192.0.2.1:18517")
    assert "over https only" in one_line_error(clear)


def test_wrong_options_are_one_line(file, tmp_path):
    for arguments, words in [
        ((file, "--bind", "0.0.0.0"), "name a token"),
        ((), "name the fabric's specification"),
        ((file, "--automatic", "maybe"), "off, dry-run, on"),
        ((file, "--tls-cert", file), "belong together"),
        ((file, "--agent-tokens", "all"), "operators' token"),
        ((file, "--database", "mysql://x/y"), "database mysql://x/y"),
        ((file, "--database", tmp_path / "no" / "c.db"), "unable to open"),
    ]:
        result = run("controller", *arguments)
        assert result.returncode in (1, 2)
        assert words in one_line_error(result)
