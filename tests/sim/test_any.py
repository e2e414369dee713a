"""Any small scenario at all: it runs, accounts for every byte, and again; or one line says why it cannot."""

import contextlib
import copy
import io
import json
import random
import re
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openmrc import sim
from openmrc.cli import main

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
    {"kind": "mrc", "prove_mtu": True, "linger": True, "receives": {"posted": 2, "repost_us": 3}},
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
                {"kind": "loss", "targets": [link], "probability": 1.0, "direction": "upward", **at, **until},
                {"kind": "bit-errors", "targets": [link], "probability": 1e-6, **at},
                {"kind": "slow", "targets": [host], "share": 0.3, **at, **until},
                {"kind": "mtu", "targets": [host], "bytes": 1500, **at, **until},
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
    derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
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
    file.write_text(scenario.to_yaml())
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


GOOD: dict[str, Any] = {
    "topology": {"hosts": 16, "planes": 2, "radix": 8},
    "traffic": [{"kind": "permutation", "bytes": 10_000}],
}


def pattern(**fields: Any) -> dict[str, Any]:
    return {"traffic": [fields]}


def fault(**fields: Any) -> dict[str, Any]:
    return {"faults": [{"targets": ["links"], **fields}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (pattern(bytes=10), r":6: traffic\.0: kind: this field is missing"),
        (pattern(kind="torus", bytes=10), r"traffic\.0: kind: torus is none of permutation, incast"),
        (pattern(kind="incast", senders=[1, 0], receiver=0, bytes=9), "receiver: h0 is one of the senders"),
        (pattern(kind="all-to-all", ranks=[1, 1], bytes=9), "h1 is named twice"),
        (
            pattern(kind="collective", operation="recursive-doubling-all-reduce", ranks=[1, 2, 3], bytes=9),
            "a power of two of ranks, not 3",
        ),
        (
            pattern(kind="collective", operation="ring-all-reduce", bytes=1 << 40),
            "bytes: 1,099,511,627,776 in 16 parts are 68,719,476,736 each: a message has at most 2\\^31",
        ),
        (
            pattern(kind="training", data=16, gradient_bytes=1 << 40),
            "gradient_bytes: 1,099,511,627,776 in 16",
        ),
        (pattern(kind="flows", file="none.csv"), r"traffic\.0\.file: .*none.csv: No such file"),
        (fault(kind="down", at_us=10, until_us=5), "until_us: 5 is not after at_us, 10"),
        (fault(kind="random", effect="loss", mtbf_us=5, mttr_us=5), "amount: loss needs one above 0"),
        (fault(kind="slow", share=1e-5), "1e-5 of the rate is too slow to simulate, at least 0.00122"),
        (fault(kind="nic-port"), "links are not all ports of hosts, as h12:p3"),
        (fault(kind="random", mtbf_us=1e-3, mttr_us=1e-3), r"faults: this run needs about .* of memory"),
        (fault(kind="flap", down_us=1, up_us=1, times=1 << 31), r"faults: this run needs about .* of memory"),
        (
            pattern(kind="permutation", bytes=1 << 31)
            | {"record": {"series": True, "links": "all", "interval_us": 1e-6}},
            r"record: this run needs about .* of memory",
        ),
        ({"record": {"series": True, "links": ["h1:p0", "h1:p0"]}}, r"record\.links: h1:p0 is named twice"),
        ({"record": {"capture": {"links": ["h99:p0"]}}}, r"record\.capture\.links: there is no port h99:p0"),
        (
            {"transport": {"kind": "rocev2", "dcqcn": {"g": 7}}},
            r"transport\.dcqcn\.g: 7 is out of range: above 0",
        ),
        ({"network": {"switch": {"ecn_min": 0.1, "ecn_min_bytes": 9}}}, "stands instead of ecn_min"),
        (
            {
                "topology": {"hosts": 16, "radix": 8, "cables": {"host_t0": 0.001}},
                "network": {"switch_latency_ns": 0},
            },
            r"topology\.cables: 0 is out of range",
        ),
        ({"topology": {"hosts": 1, "radix": 4}}, r"topology\.hosts: 1 is out of range: 2 to"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_is_one_line_that_names_the_place(
    tmp_path: Path, change: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **change}, sort_keys=False))
    assert main(["simulate", str(file), "--json"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert re.search(words, err), err


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "- a\n", "just text\n", "a: {b\n", "\ta: 1\n", "a: 1\na: 2\n"]
)
def test_a_file_that_is_no_scenario_is_refused_by_name(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(text)
    assert main(["simulate", str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {file}")


@pytest.mark.parametrize("option", ["--report", "--capture", "--parquet", "--pictures"])
def test_a_result_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    monkeypatch.setattr(sim, "run", lambda *_, **__: pytest.fail("it has run"))
    where = tmp_path / "file" / "inside"
    assert main(["simulate", str(file), option, str(where), "--capture-link", "h0:p0"]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_options_for_a_run_without_a_scenario_do_not_go_with_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    assert main(["simulate", str(file), "--hosts", "8"]) == 2
    assert "--hosts" in capsys.readouterr().err


def test_what_comes_after_the_end_of_a_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump({**GOOD, **fault(kind="down", at_us=1e6)}))
    assert main(["simulate", str(file), "--json"]) == 0
    assert re.match(r"note: faults\.0: down at 1.000 s is after the run's end at", capsys.readouterr().err)
