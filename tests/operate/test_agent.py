"""Agents in a lab: what real queue pairs see reaches the controller, and its decisions reach them."""

import re
from contextlib import ExitStack
from threading import Thread

import httpx
import pytest

from openmrc.cli import main
from openmrc.errors import DeviceError, FormatError, PrivilegeError
from openmrc.observe import Observer, publish
from openmrc.operate.agent import Agent
from openmrc.operate.client import Client
from openmrc.operate.model import Action, Request
from openmrc.operate.tokens import agent_token, read_agent_tokens
from openmrc.verbs import EvState
from tests.helpers.commands import command, one_line_error, run
from tests.helpers.controllers import TOKEN, controller, operator
from tests.helpers.ends import connected, eventually
from tests.helpers.labs import RING, needs_root, running, specification
from tests.helpers.rings import Ring


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))


def test_a_path_is_denied_and_allowed_through_the_socket_of_a_device():
    with connected(planes=2) as (a, b), publish(a.context) as publication:
        port, ev, _ = a.qp.ev_states()[0]

        def state():
            return next(s for p, e, s in a.qp.ev_states() if (p, e) == (port, ev))

        with Observer(publication.path) as observer:
            assert observer.deny(a.qp.qp_num, port, [ev]) == 1
            assert state() is EvState.DENIED
            assert observer.paths().queue_pairs[0].denied == [(port, ev)]
            assert observer.deny(a.qp.qp_num, port, [ev], denied=False) == 1
            assert state() is EvState.GOOD
            assert observer.deny(a.qp.qp_num + 1, port, [ev]) == 0
            assert observer.deny(a.qp.qp_num, port, list(range(200))) == 0
        for wrong in ("deny", "deny x 0 1", "deny 1 900 1", "allow 1 0 -5"):
            with Observer(publication.path) as observer, pytest.raises(DeviceError, match="a request is"):
                observer._ask(wrong + " ")
        a.qp.write(b"x", b.region(bytearray(1)).remote())
        a.send_cq.take(1, 20)


def tokens_of(tmp_path, hosts):
    file = tmp_path / "agents"
    file.write_text("# agents\n" + "".join(f"{host} {agent_token(TOKEN, host)}\n" for host in hosts))
    file.chmod(0o600)
    return file


@needs_root
def test_a_cable_that_nobody_uses_is_named_by_ev_probes_where_no_loop_answers(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PrivilegeError("raw sockets need root or CAP_NET_RAW")

    monkeypatch.setattr("openmrc.operate.probing._core.Prober", refused)
    with running(tmp_path, "idle") as lab, ExitStack() as stack:
        ring = Ring(lab, stack)
        for context in ring.contexts.values():
            stack.enter_context(publish(context))
        link = lab.fabric.paths("h0", "h4")[0].links[1]
        with (
            controller(lab.state.directory / "fabric.yaml", tmp_path / "c.db") as (address, _),
            operator(address) as client,
        ):
            token = read_agent_tokens(tokens_of(tmp_path, RING))
            agent = Agent(lab.fabric, RING, lambda host: Client(address, bearer=token[host]), probe_rate=500)
            thread = Thread(target=agent.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(agent.close)
            assert eventually(lambda: client.status().hosts_heard == len(RING), 60)
            assert eventually(lambda: client.link(link).evidence == "good", 60), client.link(link)
            sent = [way.qp.stats() for way in ring.ways]
            lab.degrade(link, loss=1.0)
            assert eventually(lambda: [fault.name for fault in client.faults()] == [link], 60), (
                client.faults()
            )
            assert {state for way in ring.ways for *_, state in way.qp.ev_states()} == {EvState.GOOD}
            lab.repair(link)
            assert eventually(lambda: client.faults() == [], 60), client.faults()
            assert agent.counts.paths_probed > 0
            assert [way.qp.stats() for way in ring.ways] == sent, "no queue pair has sent anything"


@needs_root
def test_which_direction_of_a_cable_is_silent_is_told_by_ev_probes_beside_loops(tmp_path):
    with running(tmp_path, "direction") as lab, ExitStack() as stack:
        ring = Ring(lab, stack)
        for context in ring.contexts.values():
            stack.enter_context(publish(context))
        link = lab.fabric.paths("h0", "h4")[0].links[1]
        with (
            controller(lab.state.directory / "fabric.yaml", tmp_path / "c.db") as (address, _),
            operator(address) as client,
        ):
            token = read_agent_tokens(tokens_of(tmp_path, RING))
            agent = Agent(lab.fabric, RING, lambda host: Client(address, bearer=token[host]), probe_rate=500)
            thread = Thread(target=agent.run)
            thread.start()
            stack.callback(thread.join)
            stack.callback(agent.close)
            assert eventually(lambda: client.link(link).evidence == "good", 60), client.link(link)
            # Probes of the hosts beneath the link pass it upwards, which leaves the other direction.
            lab.degrade(link, loss=1.0, direction="down")
            assert eventually(
                lambda: [(fault.kind, fault.name) for fault in client.faults()] == [("downward", link)], 60
            ), client.faults()
            lab.repair(link)
            assert eventually(lambda: client.faults() == [], 60), client.faults()
            # That the other direction of a link is whole only traffic tells that comes down.
            lab.degrade(link, loss=1.0, direction="up")
            assert eventually(
                lambda: (
                    ring.write(1)
                    or [(fault.kind, fault.name) for fault in client.faults()] == [("upward", link)]
                ),
                60,
            ), client.faults()


@needs_root
def test_a_lab_is_watched_and_steered_by_agents(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_JOB", "ring")
    file = specification(tmp_path, "steered")
    database, state = tmp_path / "c.db", tmp_path / "state"
    with running(tmp_path, "agents") as lab, ExitStack() as stack:
        ring = Ring(lab, stack)
        for context in ring.contexts.values():
            stack.enter_context(publish(context))
        ring.write(2)
        fabric = lab.fabric
        link, other = (fabric.paths("h0", "h4")[number].links[1] for number in (0, 1))

        def denied():
            """Paths of the ring that are denied: whether they are all those over a link, and no others."""
            found = set()
            for way in ring.ways:
                for port, ev, each in way.qp.ev_states():
                    if each is EvState.DENIED:
                        found.add((way.src, way.dst, port, ev))
            return found

        def over(name):
            return {
                (way.src, way.dst, port, ev)
                for way in ring.ways
                for port, ev, _ in way.qp.ev_states()
                if name in lab.path(way.src, way.dst, port, ev).links
            }

        def crossed(name):
            """Packets over a link so far, by the counters of the switches at its ends."""
            ends = lab.layout.link(name).ends
            return sum(lab.counters(end.node)[end.port].tx_packets for end in ends)

        port = None
        with (
            controller(lab.state.directory / "fabric.yaml", database) as (address, _),
            operator(address) as client,
        ):
            port = address.rpartition(":")[2]
            options = ("--token-file", tokens_of(tmp_path, RING), "--state", state, "--metrics", "0")
            # Probes go on over a drained link.
            options += ("--probe-rate", "0")
            agent = stack.enter_context(command("agent", address, *options))
            page = re.search(r"http\S+", agent.line())[0]
            assert eventually(lambda: client.status().hosts_heard == len(RING), 60)
            assert "openmrc_agent_connected 1.0" in httpx.get(page, trust_env=False).text
            assert eventually(
                lambda: (
                    ring.write(1)
                    or [(job.job, job.hosts, min(job.planes_bps) > 0) for job in client.jobs()]
                    == [("ring", len(RING), True)]
                ),
                60,
            ), client.jobs()
            lab.degrade(link, loss=1.0)
            assert eventually(
                lambda: ring.write(1) or [fault.name for fault in client.faults()] == [link], 60
            ), client.faults()
            lab.repair(link)
            assert eventually(lambda: ring.write(1) or client.faults() == [], 60)
            assert eventually(lambda: client.link(link).path_changes > 0, 10), "paths over it were condemned"
            before = crossed(other)
            ring.write(20)
            assert crossed(other) - before > 20
            assert client.act(Request(action=Action.DRAIN, what=other, why="a test")).done
            assert eventually(lambda: ring.write(1) or denied() == over(other), 60)
            assert over(other)
            assert eventually(
                lambda: ring.write(1) or [each.state for each in client.status().drains] == ["empty"], 60
            )
            # The switches at its ends have the last word: neighbour discovery is all that crosses it.
            before = crossed(other)
            ring.write(20)
            assert crossed(other) - before < 20
        # The controller is gone; so is the agent. A new one keeps what was decided.
        agent.interrupt()
        assert agent.wait() == 0
        way = next(each for each in ring.ways if each.src == "h0")
        source, _, plane, ev = next(each for each in over(other) if each[0] == "h0")
        assert source == way.src
        way.qp.set_ev_denied(plane, ev, denied=False)
        assert denied() != over(other)
        alone = ("--token-file", tokens_of(tmp_path, RING), "--state", state)
        second = stack.enter_context(command("agent", address, *alone))
        assert eventually(lambda: denied() == over(other), 60)
        # It finds a controller that comes back at the same place.
        with (
            controller(lab.state.directory / "fabric.yaml", database, "--port", port, "--wait") as (
                address,
                _,
            ),
            operator(address) as client,
        ):
            assert eventually(lambda: client.status().hosts_heard == len(RING), 60)
            assert client.act(Request(action=Action.UNDRAIN, what=other, why="a test")).done
            assert eventually(lambda: denied() == set(), 60)
        second.interrupt()
        assert second.wait() == 0, second.error_text
    assert file.exists()


def test_files_of_tokens_and_state_that_are_wrong_are_refused(tmp_path):
    file = tokens_of(tmp_path, ["h0"])
    assert read_agent_tokens(file) == {"h0": agent_token(TOKEN, "h0")}
    file.chmod(0o644)
    with pytest.raises(FormatError, match="every user may open"):
        read_agent_tokens(file)
    file.chmod(0o600)
    file.write_text("h0\n")
    with pytest.raises(FormatError, match=r"agents:1: a line is HOST TOKEN"):
        read_agent_tokens(file)
    from openmrc.fabric import Fabric

    fabric = Fabric.load(specification(tmp_path, "kept"))
    state = tmp_path / "deny.json"
    state.write_text('{"deny": 5}')
    with pytest.raises(FormatError, match="remove it"):
        Agent(fabric, ["h0"], lambda _: Client(), state=state)
    state.write_text('{"fabric": "another", "deny_version": 3, "deny": ["x"]}')
    assert Agent(fabric, ["h0"], lambda _: Client(), state=state).deny == frozenset()


def test_tokens_are_printed_for_hosts(tmp_path, capsys, monkeypatch):
    file = specification(tmp_path, "kept")
    monkeypatch.setenv("OPENMRC_TOKEN", "a-token-of-the-tests-0123456789")
    assert main(["controller", str(file), "--agent-tokens", "h0,h3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{host} {agent_token(TOKEN, host)}" for host in ("h0", "h3")
    ]
    refused = run("agent", "http://10.0.0.1:1", "--fabric", file, "--token-file", tokens_of(tmp_path, ["h0"]))
    assert "over https only" in one_line_error(refused)
