"""What a run hands out when asked: frames, series, events, pictures, reports, captures; interrupts; steps."""

import base64
import json
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from openmrc import sim
from openmrc.cli import main
from openmrc.errors import ArgumentError, FormatError
from openmrc.sim import text
from openmrc.wire import IcrcVerdict, read_pcap

pa = pytest.importorskip("pyarrow")
np = pytest.importorskip("numpy")
parquet = pytest.importorskip("pyarrow.parquet")

LINK = "p1/t0-0:up2--p1/t1-0"
BASE: dict[str, object] = {
    "topology": {"hosts": 32, "planes": 4, "radix": 16},
    "traffic": [
        {"kind": "permutation", "bytes": 1 << 20},
        {"kind": "incast", "senders": [8, 16, 24], "receiver": 0, "bytes": 1 << 18, "start_us": 5},
    ],
    "faults": [{"kind": "down", "targets": [LINK], "at_us": 10, "until_us": 40}],
}


def scenario(**changes: object) -> sim.Scenario:
    return sim.Scenario.model_validate({**BASE, **changes})


@pytest.fixture(scope="module")
def results() -> sim.Results:
    return sim.run(scenario(record=sim.Record.everything()))


def test_recording_everything_does_not_change_what_happens(results: sim.Results) -> None:
    plain = sim.run(scenario())
    assert plain.totals == results.totals
    assert bytes(plain.columns["delivered_ps"]) == bytes(results.columns["delivered_ps"])
    assert plain.series is None
    assert not plain.links
    assert not plain.log


def test_a_run_says_why_no_path_was_condemned_only_if_its_hosts_saw_their_links_go_down() -> None:
    def notes(*targets: str) -> list[str]:
        faults = [{"kind": "down", "targets": targets, "at_us": 10, "until_us": 40}]
        return text.notes(sim.run(scenario(faults=faults)))

    why = "the host sees it go down and sends on the others"
    assert notes("h3:p2", "h9:p0") == [f"note: no path is condemned for a host's own port: {why}"]
    assert notes("p1/t0-0") == []  # Hosts elsewhere condemn their paths to it.
    assert notes("h3:p2", LINK) == []


def test_every_frame_agrees_with_the_counters(results: sim.Results) -> None:
    frames = results.frames()
    assert set(frames) == {"flows", "links", "planes", "evs", "series", "link_series", "events"}
    assert frames["flows"].num_rows == 35
    assert sum(frames["evs"]["sent"].to_pylist()) == results.totals["data_packets"]
    assert sum(frames["evs"]["condemned"].to_pylist()) == results.totals["condemned"]
    assert sum(frames["series"]["data_packets"].to_pylist()) == results.totals["data_packets"]
    assert sum(frames["planes"]["payload_bytes"].to_pylist()) == results.summary().bytes
    links = frames["links"]
    assert links.num_rows == 2 * len(results.link_names)
    hosts = [i for i, layer in enumerate(links["layer"].to_pylist()) if layer == 0]
    sent = sum(links["bytes"][i].as_py() for i in hosts if links["direction"][i].as_py() == "up")
    assert sent == sum(frames["planes"]["host_tx_bytes"].to_pylist())
    assert sent > results.totals["data_bytes"]


def test_goodput_over_time_adds_up_to_the_bytes_of_each_pattern(results: sim.Results) -> None:
    series = results.frames()["series"]
    seconds = np.diff(np.array(series["time_us"]), prepend=0) * 1e-6
    for pattern, expected in enumerate([32 << 20, 3 << 18]):
        moved = (np.array(series[f"goodput_pattern{pattern}_bps"]) * seconds).sum() / 8
        assert moved == pytest.approx(expected)


@pytest.mark.parametrize("exact", [False, True])
def test_no_link_sends_more_than_its_rate_and_a_full_one_sends_no_less(exact: bool) -> None:
    record = sim.Record(series=True, links="all")
    results = sim.run(scenario(network={"switch": {"exact": exact}}, faults=[], record=record))
    frame = results.frames()["link_series"]
    load, waiting, time = (np.array(frame[name]) for name in ("load", "queued_bytes", "time_us"))
    links = 2 * len(results.link_names)
    took = time - np.append(np.zeros(links), time[:-links])
    could = results.scenario.topology.port_rate / 8e6 * took
    # Whole bytes are counted.
    assert (load * could < could + 1.001).all()
    full = waiting > could + 2 * 4262
    assert full.sum() > 100
    assert (load * could > could - 1.001)[full].all()


def test_the_broken_link_carries_nothing(results: sim.Results) -> None:
    frame = results.frames()["link_series"]
    load = np.array(frame["load"])
    broken = np.array([name == LINK for name in frame["link"].to_pylist()])
    time = np.array(frame["time_us"])
    # What had been accepted before the fault is gone a moment later.
    assert load[broken & (time > 12) & (time < 39)].sum() == 0
    assert load[broken & (time < 10)].max() > 0.1


def test_the_log_says_what_broke_and_which_paths_went(results: sim.Results) -> None:
    kinds = [entry.kind for entry in results.log]
    assert kinds.index("down") < kinds.index("ev-bad")
    down = results.log[kinds.index("down")]
    assert (down.where, down.time_us) == (LINK, pytest.approx(10, abs=1))
    assert kinds.count("ev-bad") == results.totals["condemned"]
    assert [entry.time_us for entry in results.log] == sorted(entry.time_us for entry in results.log)


def test_frames_are_written_as_parquet(results: sim.Results, tmp_path: Path) -> None:
    paths = results.to_parquet(tmp_path / "out")
    assert {path.name for path in paths} >= {"flows.parquet", "links.parquet", "summary.json"}
    for path in paths:
        if path.suffix == ".parquet":
            assert parquet.read_table(path).equals(results.frames()[path.stem])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["totals"] == dict(results.totals)


def test_an_interval_is_kept_and_a_list_of_links_too() -> None:
    record = sim.Record(series=True, interval_us=5, links=[LINK])
    results = sim.run(scenario(record=record))
    assert results.series is not None
    times = results.series.times_us
    assert all(abs(time - 5 * (i + 1)) < 1 for i, time in enumerate(times[:-1]))
    assert results.series.array("sent").shape == (len(times), 1, 2)


def test_every_picture_shows_and_the_report_needs_nothing_else(results: sim.Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = {path.name for path in results.pictures(tmp_path)}
    assert names == {"goodput.png", "planes.png", "completion.png", "queues.png", "link-load.png"}
    results.report(tmp_path / "report.html", "A <report>")
    html = (tmp_path / "report.html").read_text()
    assert "A &lt;report&gt;" in html
    pictures = re.findall(r'src="data:image/[a-z+]+;base64,([^"]+)"', html)
    assert len(pictures) == 5
    assert all(len(base64.b64decode(picture)) > 5000 for picture in pictures)
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert LINK in html


def test_a_training_step_is_timed_and_a_fault_inside_it_shows() -> None:
    training = {
        "kind": "training",
        "data": 8,
        "tensor": 2,
        "pipeline": 2,
        "microbatches": 2,
        "steps": 4,
        "forward_us": 10,
        "backward_us": 20,
        "tensor_bytes": 100_000,
        "activation_bytes": 50_000,
        "gradient_bytes": 1_000_000,
    }
    healthy = sim.run(scenario(traffic=[training], faults=[]))
    took = [step.took_us for step in healthy.steps]
    assert len(took) == 4
    assert all(time is not None and time > 90 for time in took)
    assert sum(time for time in took if time) == pytest.approx(healthy.steps[-1].end_us)
    assert all(size > 0 for size in healthy.columns["bytes"])
    slow = {
        "kind": "slow",
        "targets": ["h3:p0--p0/t0-0:down3", "h3:p1--p1/t0-0:down3"],
        "share": 0.05,
        "at_us": 0,
    }
    hurt = sim.run(scenario(traffic=[training], faults=[slow]))
    assert hurt.steps[0].took_us is not None
    assert took[0] is not None
    assert hurt.steps[0].took_us > took[0]


def test_flows_come_from_a_file_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "flows.csv").write_text("src,dst,bytes,start_us\nh0,h1,5000,0\n2, 3,7000,4.5\n")
    file = tmp_path / "scenario.yaml"
    file.write_text(
        "topology: {hosts: 8, planes: 2, radix: 8}\ntraffic:\n  - {kind: flows, file: flows.csv}\n"
    )
    results = sim.run(sim.load(file))
    assert list(results.columns["bytes"]) == [5000, 7000]
    assert list(results.columns["posted_ps"]) == [0, 4_500_000]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,1\n", "1: 2 columns"),
        ("src,dst,bytes\n0,x,5\n", "2: dst: x is not a whole number"),
        ("0,1,0\n", "bytes: 0 is out of range"),
        ("0,1,5,-3\n", "start_us: -3"),
        ("", "no flows"),
    ],
)
def test_a_bad_list_of_flows_names_the_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "flows.csv").write_text(text)
    with pytest.raises(FormatError, match=words):
        sim.run(scenario(traffic=[{"kind": "flows", "file": str(tmp_path / "flows.csv")}]))


BAD = """\
topology: {hosts: 32, planes: 4, radix: 16}
traffic:
  - kind: incast
    senders: [1,
              2, 77]
    receiver: 0
    bytes: 1000
faults:
  - kind: down
    targets: [p1/t1-0]
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("", ""), r"5: traffic\.0\.senders\.2: host h77 does not exist, the fabric has h0 to h31"),
        (("2, 77", "2"), None),
        (("2, 77", "2]\n    color: [red"), r"6: traffic\.0\S*color: there is no such field"),
        (("p1/t1-0", "p1/t1-99"), r"10: faults\.0\.targets: .*p1/t1-99 does not exist"),
        (("radix: 16", "radix: 2"), r"1: topology\.hosts: "),
        (
            ("planes: 4, radix: 16}", "planes: 4, radix: 16,\n  nic: {rate: 28G}}"),
            r"2: topology\.nic\.rate: ",
        ),
        (("hosts: 32, planes: 4, radix: 16", "hosts: 60000, planes: 2, radix: 512"), "of memory"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs_naming_the_line(
    tmp_path: Path, change: tuple[str, str], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scenario.yaml"
    text = BAD if "77" in change[0] or words is None or "77" in words else BAD.replace(", 77", ", 7")
    text = text.replace(*change)
    if words == "of memory":
        text = re.sub(
            r"  - kind: incast.*?(?=faults)", "  - {kind: all-to-all, bytes: 1}\n", text, flags=re.S
        )
    file.write_text(text)
    code = main(["simulate", str(file), "--json"])
    err = capsys.readouterr().err
    if words is None:
        assert code == 0
    else:
        assert code == 1
        assert err.count("\n") == 1
        assert re.search(words, err), err


def test_an_interrupt_gives_what_is_known_so_far() -> None:
    long = scenario(traffic=[{"kind": "permutation", "bytes": 1 << 30}], faults=[])
    seen: list[sim.Progress] = []

    def progress(so_far: sim.Progress) -> None:
        seen.append(so_far)
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)

    results = sim.run(long, progress)
    assert results.interrupted
    assert results.summary().delivered == 0
    assert results.totals["data_packets"] >= seen[-1].data_packets > 0


def test_an_interrupted_command_prints_what_is_known_and_exits_with_130(
    capsys: pytest.CaptureFixture[str],
) -> None:
    timer = threading.Timer(1.5, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    options = ["--hosts", "64", "--planes", "4", "--radix", "16", "--size", str(1 << 31)]
    code = main(["simulate", *options, "--json"])
    timer.cancel()
    out = capsys.readouterr()
    assert code == 130
    result = json.loads(out.out)
    assert result["interrupted"]
    assert result["totals"]["data_packets"] > 0


def test_tshark_opens_a_capture_and_sees_the_same_fields(tmp_path: Path) -> None:
    cable = "h0:p0--p0/t0-0:down0"
    capture = sim.Capture(links=[cable], snaplen=65536)
    path = tmp_path / "out.pcapng"
    results = sim.run(scenario(record=sim.Record(capture=capture, evs=True)), capture=path)
    try:
        fields = [
            "frame.time_relative",
            "frame.len",
            "frame.cap_len",
            "infiniband.bth.opcode",
            "infiniband.bth.destqp",
        ]
        arguments = [argument for name in fields for argument in ("-e", name)]
        shown = subprocess.run(
            ["tshark", "-r", str(path), "-T", "fields", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("tshark is not installed")
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    assert len(rows) > 100
    assert all(row[1] == row[2] for row in rows)
    packets = list(read_pcap(path))
    assert len(packets) == len(rows)
    data = 0
    for row, packet in zip(rows, packets, strict=True):
        assert packet.error is None, packet.error
        assert packet.packet is not None
        assert packet.icrc in (IcrcVerdict.GOOD, IcrcVerdict.TRIMMED)
        assert int(row[3], 0) == packet.packet.opcode
        assert int(row[4], 16) == packet.packet.dest_qp
        data += packet.packet.opcode in range(0xC6, 0xCC)
    up = [row for row in results.frames()["evs"].to_pylist() if row["src"] == 0 and row["plane"] == 0]
    assert data >= sum(row["sent"] for row in up)


def test_a_capture_needs_links(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="which links"):
        sim.run(scenario(), capture=tmp_path / "x.pcapng")


def test_snaplen_goes_for_the_links_of_the_scenario_too(tmp_path: Path) -> None:
    file, captured = tmp_path / "scenario.yaml", tmp_path / "links.pcapng"
    file.write_text(
        "topology: {hosts: 16, planes: 2, radix: 8}\n"
        "traffic: [{kind: permutation, bytes: 65536}]\n"
        "record: {capture: {links: ['h0:p0'], packets: 5}}\n"
    )
    sizes = []
    for snaplen in ("100", "2000"):
        assert main(["simulate", str(file), "--capture", str(captured), "--snaplen", snaplen]) == 0
        sizes.append(captured.stat().st_size)
    # Five packets, as the scenario says, of which so many bytes are kept.
    assert 5 * 100 < sizes[0] < 5 * 300
    assert sizes[1] - sizes[0] == 5 * 1900
