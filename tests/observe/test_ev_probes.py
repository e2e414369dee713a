"""EV probes at the request of an agent: idle paths are asked in turn; silent ones are told, not condemned."""

import json
import random
import threading

import pytest

from openmrc.errors import ArgumentError, ClosedError, DeviceError
from openmrc.observe import Observer, QueuePairPaths, publish
from openmrc.observe.ev_probes import ATTEMPTS, MOST_PROBES, EvProbes
from openmrc.testing import Impairment, impaired
from openmrc.verbs import EvState
from tests.helpers.ends import connected, eventually


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENMRC_OBSERVE_DIR", str(tmp_path / "observed"))


class Network:
    """Peers by the queue pair's number; paths in ``broken`` have no answer."""

    def __init__(self):
        self.broken = set()
        self.asked = []
        self.closed = False

    def probe_paths(self, qp_num, paths, timeout):
        if self.closed:
            raise ClosedError("closed")
        assert timeout <= 1
        self.asked.append((qp_num, list(paths)))
        return [None if (qp_num, path) in self.broken else 1000 for path in paths]


def pair(number, paths):
    return QueuePairPaths(
        qp_num=number, remote=[f"fd00::{number}"], good=list(paths), bad=[], denied=[(9, 9)]
    )


def turn(probes, pairs, most):
    """A request, and the end of its probes."""
    begun = probes.begin(pairs, most)
    if probes._thread is not None:
        probes._thread.join()
    return begun


def known(probes, pairs):
    """Every peer has answered."""
    for _ in pairs:
        turn(probes, pairs, len(pairs))
    assert all(probes.of(each.remote) for each in pairs)


def asked(probes, remote):
    return [row for row in probes.of([remote]) if row[-1]]


PATHS = [(port, ev) for port in range(2) for ev in range(8)]


def test_all_paths_have_their_turn_and_a_silent_one_is_asked_again_at_once():
    network = Network()
    network.broken = {(1, (1, 3))}
    probes, pairs = EvProbes(network), [pair(1, PATHS), pair(2, PATHS)]
    assert probes.of(["fd00::1"]) == []
    known(probes, pairs)
    assert [turn(probes, pairs, 12) for _ in range(6)] == [12] * 6
    told = {(port, ev): unanswered for port, ev, unanswered, _ in asked(probes, "fd00::1")}
    assert set(told) == set(PATHS)
    assert {path for path, unanswered in told.items() if unanswered} == {(1, 3)}
    assert [paths for number, paths in network.asked if number == 1].count([(1, 3)]) >= ATTEMPTS - 1
    assert {(port, ev) for port, ev, *_ in asked(probes, "fd00::2")} == set(PATHS)


def test_of_two_turns_one_is_for_peers_that_were_silent_on_a_path():
    network = Network()
    network.broken = {(7, PATHS[5])}
    probes, pairs = EvProbes(network), [pair(number, PATHS) for number in range(20)]
    known(probes, pairs)
    while not any(unanswered for *_, unanswered, _ in probes.of(["fd00::7"])):
        assert turn(probes, pairs, len(PATHS))
    [before] = [row for row in probes.of(["fd00::7"]) if row[2]]
    for _ in range(8):
        turn(probes, pairs, len(PATHS))
    [(*path, unanswered, since)] = [row for row in probes.of(["fd00::7"]) if row[2]]
    assert unanswered - before[2] >= 4 * ATTEMPTS, "of the other turns it has one of twenty"
    assert (*path, since) == (*before[:2], before[3]), "counted from the first"
    network.broken.clear()
    turn(probes, pairs, len(PATHS))
    turn(probes, pairs, len(PATHS))
    assert all(not unanswered for *_, unanswered, _ in probes.of(["fd00::7"]))


def test_a_peer_that_answers_nowhere_says_nothing_about_its_paths():
    network = Network()
    network.broken = {(1, path) for path in PATHS}
    probes, pairs = EvProbes(network), [pair(1, PATHS)]
    assert [turn(probes, pairs, 100) for _ in range(20)] == [1] * 20, "one at a time until it answers"
    assert {path for _, paths in network.asked for path in paths} == set(PATHS)
    assert probes.of(["fd00::1"]) == []
    network.broken = set()
    assert [turn(probes, pairs, 100) for _ in range(2)] == [1, len(PATHS)]
    before = probes.of(["fd00::1"])
    network.broken = {(1, path) for path in PATHS}
    turn(probes, pairs, 100)
    assert probes.of(["fd00::1"]) == before


def test_when_nobody_asks_any_more_nothing_is_known(monkeypatch):
    network = Network()
    probes, pairs = EvProbes(network), [pair(1, PATHS)]
    known(probes, pairs)
    network.broken = {(1, PATHS[3])}
    turn(probes, pairs, 100)
    assert any(unanswered for *_, unanswered, _ in probes.of(["fd00::1"]))
    monkeypatch.setattr("openmrc.observe.ev_probes.FORGOTTEN_S", -1.0)
    assert probes.of(["fd00::1"]) == [], "the path may be whole again"


def test_what_is_told_is_of_the_paths_there_are_whatever_comes_and_goes():
    generator = random.Random(5)
    network = Network()
    probes = EvProbes(network)
    for _ in range(200):
        pairs = [
            pair(number, generator.sample(PATHS, generator.randint(0, len(PATHS))))
            for number in generator.sample(range(6), generator.randint(0, 6))
        ]
        paths = {(each.qp_num, path) for each in pairs for path in each.good}
        network.broken = set(generator.sample(sorted(paths), len(paths) // 3))
        most = generator.randint(1, 40)
        assert turn(probes, pairs, most) <= min(most, len(paths))
        told = {
            (number, (port, ev)) for number in range(6) for port, ev, *_ in probes.of([f"fd00::{number}"])
        }
        assert told <= paths
    many = [pair(1, [(0, ev) for ev in range(2 * MOST_PROBES)])]
    known(probes, many)
    assert turn(probes, many, 10**8) == MOST_PROBES
    network.closed = True
    assert turn(probes, many, 4) == 4, "a device that is being closed disturbs nobody"
    probes.close()
    assert turn(probes, [pair(1, PATHS)], 4) == 0


def test_while_probes_are_under_way_no_others_begin():
    waiting, going = threading.Event(), threading.Event()

    class Slow(Network):
        def probe_paths(self, qp_num, paths, timeout):
            waiting.set()
            going.wait(20)
            return super().probe_paths(qp_num, paths, timeout)

    probes = EvProbes(Slow())
    assert probes.begin([pair(1, PATHS)], 4) == 1
    assert waiting.wait(20)
    assert probes.begin([pair(1, PATHS)], 4) == 0
    assert probes.of(["fd00::1"]) == []
    going.set()
    probes.close()


def test_an_idle_plane_that_is_broken_is_told_and_not_condemned():
    with connected(planes=2) as (a, b), publish(a.context) as publication, Observer(publication.path) as seen:
        assert seen.probe(100) == 0, "nobody has asked for paths yet"

        def told():
            [now] = seen.paths().queue_pairs
            seen.probe(1000)
            return now.probed

        assert eventually(lambda: {port for port, *_, began in told() if began} == {0, 1}, 20)
        assert all(not unanswered for *_, unanswered, _ in told())
        with impaired(b.context, Impairment.drop(ports=[1])):
            assert eventually(lambda: any(n >= 2 * ATTEMPTS for *_, n, _ in told()), 30)
            assert {port for port, _, unanswered, _ in told() if unanswered} == {1}
        assert {state for *_, state in a.qp.ev_states()} == {EvState.GOOD}
        assert eventually(lambda: all(not unanswered for *_, unanswered, _ in told()), 30)
        b.qp.write(b"x", a.region(bytearray(1)).remote())
        b.send_cq.take(1, 20)


@pytest.mark.parametrize("wrong", ["probe", "probe ", "probe 0", "probe -1", "probe x", "probe 9999999999"])
def test_a_wrong_request_has_an_error(wrong):
    with (
        connected() as (a, _),
        publish(a.context) as publication,
        Observer(publication.path) as seen,
        pytest.raises(DeviceError, match="a request is"),
    ):
        seen._ask(wrong)


def test_paths_of_no_queue_pair_are_refused():
    with connected() as (a, _):
        port, ev, _ = a.qp.ev_states()[0]
        [rtt] = a.context.probe_paths(a.qp.qp_num, [(port, ev)], 5)
        assert rtt > 0
        with pytest.raises(ArgumentError, match="there is none of this number"):
            a.context.probe_paths(a.qp.qp_num + 1, [(port, ev)], 1)
        with pytest.raises(ArgumentError, match="no path"):
            a.context.probe_paths(a.qp.qp_num, [(port, ev ^ 0xFFFF)], 1)


def test_all_paths_to_a_peer_may_be_asked_at_once():
    """The peer answers 64 requests at once; the sender spreads them."""
    with connected(planes=2) as (a, b):
        paths = [(port, ev) for port, ev, _ in a.qp.ev_states()]
        assert len(paths) > 128
        for _ in range(3):
            assert all(a.context.probe_paths(a.qp.qp_num, paths, 5))
        assert b.context.stats()["node"]["requests_limited"] == 0


def test_an_answer_is_no_use_of_a_path_that_shows_it_to_work():
    with connected(planes=2) as (a, b):
        paths = [(port, ev) for port, ev, _ in a.qp.ev_states()]
        assert all(a.context.probe_paths(a.qp.qp_num, paths, 5))
        assert sum(row["last_tx_ns"] > 0 for row in a.context.path_stats()) == len(paths)
        assert sum(row["tx_packets"] for row in b.context.path_stats()) >= len(paths)
        assert {row["last_tx_ns"] for row in b.context.path_stats()} == {0}


def test_what_is_told_passes_as_json():
    with connected() as (a, _), publish(a.context) as publication, Observer(publication.path) as seen:
        seen.paths()
        assert seen.probe(5) == 1
        assert eventually(lambda: seen.paths().queue_pairs[0].probed, 20)
        [row, *_] = json.loads(json.dumps(seen.paths().queue_pairs[0].probed))
        assert len(row) == 4
