"""Any small scenario at all: it runs, accounts for every byte, and again; or one line says why it cannot."""

import contextlib
import copy
import io
import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openmrc import sim
from openmrc.cli import main
from openmrc.sim.report import as_yaml

MOST_BYTES = 60_000
LIMIT_US = 2_000

Fabric = dict[str, Any]


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    """A fabric that exists: its hosts fit whatever the tiers and the radix are."""
    tiers = draw(st.integers(1, 4))
    radix = draw(st.sampled_from([4, 6, 8, 16]))
    most = {1: radix, 2: radix**2 // 2, 3: radix**3 // 4, 4: radix**4 // 8}[tiers]
    return {
        "hosts": draw(st.integers(2, min(most, 20))),
        "planes": draw(st.integers(1, 3)),
        "tiers": tiers,
        "radix": radix,
        "oversubscription": draw(st.sampled_from([1, 1, 1, "3:1"])) if radix > 4 and tiers == 2 else 1,
    }


def ranks(hosts: int) -> st.SearchStrategy[list[int] | None]:
    return st.none() | st.lists(st.integers(0, hosts - 1), min_size=2, max_size=6, unique=True)


def sizes() -> st.SearchStrategy[int]:
    return st.integers(1, 9) | st.integers(1, MOST_BYTES)


@st.composite
def patterns(draw: st.DrawFn, hosts: int) -> dict[str, Any]:
    kind = draw(
        st.sampled_from(["permutation", "incast", "all-to-all", "random", "flows", "collective", "training"])
    )
    pattern: dict[str, Any] = {"kind": kind, "start_us": draw(st.sampled_from([0, 0, 3.25, 40]))}
    match kind:
        case "permutation":
            pattern |= {"bytes": draw(sizes()), "seed": draw(st.integers(0, 9))}
        case "incast":
            receiver, *senders = draw(
                st.lists(st.integers(0, hosts - 1), min_size=2, max_size=9, unique=True)
            )
            pattern |= {"senders": senders, "receiver": receiver, "bytes": draw(sizes())}
        case "all-to-all":
            pattern |= {"ranks": draw(ranks(hosts)), "bytes": draw(st.integers(1, 5_000))}
        case "random":
            points = [[draw(st.integers(1, 500)), 0.5], [draw(st.integers(500, MOST_BYTES)), 1]]
            pattern |= {"load": draw(st.floats(0.01, 1)), "sizes": points, "duration_us": 20}
        case "flows":
            pair = st.tuples(st.integers(0, hosts - 1), st.integers(0, hosts - 1)).filter(
                lambda p: p[0] != p[1]
            )
            flows = draw(st.lists(st.tuples(pair, sizes(), st.floats(0, 50)), min_size=1, max_size=5))
            pattern["flows"] = [[*pair, size, start] for pair, size, start in flows]
        case "collective":
            operations = ["ring-all-reduce", "all-gather", "reduce-scatter", "all-to-all", "pipeline"]
            pattern |= {
                "operation": draw(st.sampled_from(operations)),
                "ranks": draw(ranks(hosts)),
                "bytes": draw(sizes()),
                "microbatches": 2,
            }
        case "training":
            two = [draw(st.integers(1, 2)) if hosts >= 8 else 1 for _ in range(3)]
            layout = dict(zip(("data", "tensor", "pipeline"), two, strict=True))
            layout["expert"] = draw(st.sampled_from([1, layout["data"]]))
            pattern |= layout | {
                "steps": 2,
                "microbatches": 2,
                "forward_us": 3,
                "backward_us": 5,
                "tensor_bytes": draw(st.integers(0, 5_000)),
                "expert_bytes": draw(st.integers(0, 5_000)),
                "activation_bytes": draw(st.integers(0, 5_000)),
                "gradient_bytes": draw(st.integers(0, 50_000)),
            }
    return pattern


TRANSPORTS: list[dict[str, Any]] = [
    {"kind": "mrc"},
    {"kind": "mrc", "ev_active": 3, "ev_backup": 1, "mpr": 1},
    {"kind": "mrc", "fixed_window": 20_000, "destination_control": False},
    {"kind": "uet", "load_balancing": "oblivious"},
    {"kind": "uet", "load_balancing": "skip", "evs": 5},
    {"kind": "adaptive"},
    {"kind": "rocev2"},
    {"kind": "rocev2", "qps": 3, "recovery": "selective-repeat", "dcqcn": False},
]


@st.composite
def faults(draw: st.DrawFn, fabric: Fabric) -> dict[str, Any]:
    host = f"h{draw(st.integers(0, fabric['hosts'] - 1))}:p{draw(st.integers(0, fabric['planes'] - 1))}"
    link = draw(st.sampled_from([host, "host-links", "links"]))
    at = {"at_us": draw(st.floats(0, 60))}
    until = {"until_us": draw(st.floats(70, 200))}
    return draw(
        st.sampled_from(
            [
                {"kind": "down", "targets": [host], **at, **until},
                {"kind": "down", "targets": ["p0/t0-0"], **at},
                {"kind": "loss", "targets": [link], "probability": 0.03, **at, **until},
                {"kind": "bit-errors", "targets": [link], "probability": 1e-6, **at},
                {"kind": "slow", "targets": [host], "share": 0.3, **at, **until},
                {"kind": "flap", "targets": [host], "down_us": 5, "up_us": 7, "times": 3, **at},
                {"kind": "reboot", "targets": ["p0/t0-0"], "down_us": 30, **at},
                {"kind": "nic-port", "targets": [host], **at, **until},
                {"kind": "transceiver", "targets": ["p0/t0-0"], "ports": [0, 1], "down_us": 9, **at},
                {"kind": "broken", "targets": [link], "share": 0.2},
                {"kind": "random", "targets": [link], "mtbf_us": 300, "mttr_us": 20, **until},
            ]
        )
    )


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    fabric = draw(fabrics())
    return {
        "topology": fabric,
        "transport": draw(st.sampled_from(TRANSPORTS)),
        "traffic": draw(st.lists(patterns(fabric["hosts"]), min_size=1, max_size=2)),
        "faults": draw(st.lists(faults(fabric), max_size=2)),
        "limit_us": LIMIT_US,
        "seed": draw(st.integers(0, 3)),
    }


WITHOUT_FIXTURES = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@settings(WITHOUT_FIXTURES, max_examples=120)
@given(scenarios())
def test_any_scenario_runs_keeps_count_of_every_byte_and_comes_out_the_same_again(
    value: dict[str, Any],
) -> None:
    scenario = sim.Scenario.model_validate(value)
    results = sim.run(scenario)
    totals, columns = results.totals, results.columns
    dropped = sum(totals[name] for name in totals if name.startswith("dropped_") and name != "dropped_bytes")
    sent = totals["data_packets"] + totals["control_packets"]
    assert sent == totals["arrived"] + totals["stray"] + dropped + totals["in_flight"]
    if totals["in_flight"] == 0:
        launched = totals["arrived_bytes"] + totals["dropped_bytes"] + totals["cut_bytes"]
        assert totals["launched_bytes"] == launched
    summary = results.summary()
    assert totals["data_bytes"] >= summary.bytes
    for size, posted, delivered, failed in zip(
        *(columns[name] for name in ("bytes", "posted_ps", "delivered_ps", "failed")), strict=True
    ):
        assert size > 0
        assert posted <= delivered
        assert failed in (0, 1)
    if not scenario.faults and summary.messages:
        assert summary.failed == 0
        assert summary.delivered == summary.messages or totals["end_ps"] == LIMIT_US * 1_000_000
    again = sim.run(
        scenario.model_copy(update={"record": sim.Record(series=True, events=True, ports=True, evs=True)})
    )
    assert again.totals == totals
    assert {name: bytes(column) for name, column in again.columns.items()} == {
        name: bytes(column) for name, column in columns.items()
    }


@settings(WITHOUT_FIXTURES, max_examples=60)
@given(scenarios())
def test_the_scenario_that_a_report_shows_is_the_one_that_ran(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any]
) -> None:
    scenario = sim.Scenario.model_validate(value)
    file = tmp_path_factory.getbasetemp() / "shown.yaml"
    file.write_text(as_yaml(scenario))
    assert sim.load(file) == scenario


ODD = [
    None,
    True,
    0,
    -1,
    1,
    2,
    255,
    65_536,
    2**31,
    2**32,
    2**64,
    10**30,
    0.0,
    -0.5,
    1e-9,
    0.5,
    1e9,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "1",
    "nan",
    "links",
    "h0",
    "h99999999999:p0",
    "p0/t0-0",
    "p0/t9-9:up1--p0/t1-1",
    "400G",
    [],
    [[]],
    [1, 1],
    {},
    {"kind": "mrc"},
]


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, each in inner for place in places(each, (*way, key)))]


def spoil(value: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """The document with one place in it changed, gone, doubled or renamed."""
    value = json.loads(json.dumps(value))
    *way, last = dice.choice([place for place in places(value) if place])
    inside: Any = value
    for key in way:
        inside = inside[key]
    match dice.randrange(5):
        case 0:
            del inside[last]
        case 1 if isinstance(inside, dict):
            inside["".join(dice.choices(string.ascii_lowercase, k=3))] = copy.deepcopy(inside[last])
        case 2 if isinstance(inside, list):
            inside.append(copy.deepcopy(inside[last]))
        case _:
            inside[last] = copy.deepcopy(dice.choice(ODD))
    return value


@settings(WITHOUT_FIXTURES, max_examples=250)
@given(scenarios(), st.integers(0, 2**32), st.integers(1, 2))
def test_any_spoilt_scenario_runs_or_one_line_names_the_place(
    tmp_path_factory: pytest.TempPathFactory, value: dict[str, Any], seed: int, times: int
) -> None:
    dice = random.Random(seed)
    for _ in range(times):
        value = spoil(value, dice)
    # Without a limit a run may take as long as it likes; that is no error, but too long for a test.
    value["limit_us"] = LIMIT_US
    file = tmp_path_factory.getbasetemp() / "spoilt.yaml"
    file.write_text(yaml.safe_dump(value, sort_keys=False))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["simulate", str(file), "--json"])
    told = err.getvalue()
    if code == 0:
        result = json.loads(out.getvalue())
        assert result["summary"]["delivered"] + result["summary"]["failed"] <= result["summary"]["messages"]
        assert all(line.startswith("note: ") for line in told.splitlines())
    else:
        assert code == 1
        assert out.getvalue() == ""
        assert told.count("\n") == 1
        assert told.startswith(f"error: {Path(file)}")
