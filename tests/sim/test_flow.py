"""``engine: flow``: shares of links instead of packets, in scenarios and from the command line."""

import json
import signal

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError

FABRIC = {"hosts": 64, "planes": 4, "radix": 16, "nic": {"rate": 400_000_000_000}}


def scenario(**fields):
    fields.setdefault("traffic", [{"kind": "permutation", "bytes": 1 << 20}])
    return sim.Scenario.model_validate({"topology": FABRIC, **fields})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_last_message_is_within_three_percent_of_packet_level(seed):
    ring = {"kind": "collective", "operation": "ring-all-reduce", "bytes": 4 << 20}
    for traffic in ({"kind": "permutation", "bytes": 1 << 20, "seed": seed}, ring):
        packets, flow = (
            sim.run(scenario(traffic=[traffic], seed=seed, engine=engine)) for engine in ("packets", "flow")
        )
        assert flow.summary().delivered == packets.summary().delivered
        assert flow.summary().last_us == pytest.approx(packets.summary().last_us, rel=0.03)


def test_results_have_their_form_and_counters_of_packets_are_zero():
    results = sim.run(
        scenario(engine="flow", faults=[{"kind": "down", "targets": ["p0/t1-0"], "at_us": 5, "until_us": 9}])
    )
    counted = {name: value for name, value in results.totals.items() if value}
    assert counted.keys() == {"end_ps", "events", "data_bytes"}
    assert counted["data_bytes"] == 64 << 20
    assert results.columns["delivered_ps"] == sim.run(results.scenario).columns["delivered_ps"]
    assert results.to_dict()


def test_an_interrupt_is_heard_before_the_run_is_over():
    # With many flows an event takes long, as the shares of all of them may change: a step is a few events.
    seen = []

    def progress(so_far):
        seen.append(so_far.events)
        if len(seen) == 3:
            signal.raise_signal(signal.SIGINT)

    found = sim.run(scenario(engine="flow", traffic=[sim.AllToAll(bytes=1 << 20)]), progress)
    assert found.interrupted
    assert len(seen) == 3
    assert found.summary().delivered < found.summary().messages


def test_what_only_packets_have_is_refused_with_the_field_and_the_way_out(tmp_path):
    with pytest.raises(ArgumentError, match=r"^transport\.kind: .* `engine: packets`$"):
        sim.run(scenario(engine="flow", transport={"kind": "rocev2"}))
    file = tmp_path / "lossy.yaml"
    file.write_text(
        "engine: flow\n"
        "topology: {hosts: 64, planes: 4, radix: 16}\n"
        "traffic: [{kind: permutation, bytes: 4096}]\n"
        "faults: [{kind: loss, targets: [h0:p0], at_us: 0, probability: 0.1}]\n"
    )
    with pytest.raises(ArgumentError, match=r"lossy\.yaml:4: faults: .* `engine: packets`$"):
        sim.run(sim.load(file))
    with pytest.raises(ArgumentError, match=r"engine"):
        scenario(engine="fluid")


def test_the_command_takes_the_engine(capsys):
    assert (
        main(["simulate", "--engine", "flow", "--hosts", "64", "--radix", "16", "--planes", "4", "--json"])
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["totals"]["data_packets"] == 0
    assert main(["simulate", "--engine", "flow", "--hosts", "64", "--radix", "16"]) == 0
    assert "flow: no packets, no queues" in capsys.readouterr().out
    assert main(["simulate", "--engine", "flow", "--threads", "2"]) != 0
    assert "threads: the flow engine runs in one thread" in capsys.readouterr().err
    assert main(["simulate", "--engine", "fluid"]) == 2
    assert capsys.readouterr().err == (
        "error: Invalid value for '--engine': 'fluid' is not one of 'packets', 'auto', 'flow'; "
        "see `openmrc simulate --help`\n"
    )
