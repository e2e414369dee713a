"""`openmrc demo`: a short run, and its arithmetic and picture with made-up samples."""

import json
import re
import signal
from pathlib import Path

import pytest

from openmrc import pictures
from openmrc.demos.director import changes
from openmrc.demos.loopback import picture
from openmrc.demos.loopback.analysis import figures
from openmrc.demos.loopback.network import FaultRecord, PathStates
from openmrc.demos.loopback.receiver import VERIFIED, Report
from openmrc.demos.loopback.run import Outcome
from openmrc.demos.loopback.schedule import standard
from openmrc.demos.series import Series
from openmrc.errors import ArgumentError
from tests.helpers.commands import command, one_line_error, run

SECOND = 10**9
PLANES = 8


def made_up(*, bad_digest=False, dead_gbps=0.0):
    """A run of 10 s at 8 Gb/s, 1 Gb/s per plane, in which plane 3 is dead from 2 s to 8 s.

    Goodput stays the same, except for 100 ms after the failure in which nothing arrives.
    """
    schedule = standard(10.0, PLANES)
    began = 5 * SECOND
    step = SECOND // 100
    series = Series()
    verified, planes = 0, [0] * PLANES
    for i in range(1001):
        now = i * step
        series.time_ns.append(began + now)
        series.rows.append((verified, *planes))
        silence = 2 * SECOND <= now < 2 * SECOND + SECOND // 10
        verified += 0 if silence else step
        for plane in range(PLANES):
            dead = plane == 3 and 2 * SECOND <= now < 8 * SECOND
            planes[plane] += 0 if silence else int(step / 8 * (dead_gbps if dead else 1.0))
    records = []
    for fault in schedule.faults:
        record = FaultRecord(
            fault,
            began + int(fault.begin * SECOND),
            began + int(fault.end * SECOND),
            hits=[40 for _ in fault.rules],
        )
        if fault.kind == "plane_dead":
            record.hits_over_time = [(record.began_ns + 1_000_000, 39), (record.began_ns + 7_000_000, 40)]
            record.last_hit_ns = record.began_ns + 7_000_000
        records.append(record)
    states = PathStates()
    for i in range(100):
        states.time_ns.append(began + i * SECOND // 10)
        states.bad.append([1.0 if plane == 3 and 20 <= i < 80 else 0.0 for plane in range(PLANES)])
    counters = dict.fromkeys(
        ("data_packets", "retransmits", "trimmed", "spurious", "timeouts", "condemned"), 7
    )
    return Outcome(
        schedule=schedule,
        source_size=verified,
        source_digest="a",
        began_ns=began,
        finished_ns=began + 10 * SECOND,
        sent_files=1,
        receiver=Report(digests=["b" if bad_digest else "a"], series=series),
        records=records,
        states=states,
        transport=counters,
        addresses=[f"127.{plane + 1}.0.1" for plane in range(PLANES)],
        error=None,
    )


def dip_ms(series, begin_ns, end_ns, floor_gbps):
    return series.longest_dip_ns([VERIFIED], begin_ns, end_ns, floor_gbps * 1e9) / 1e6


# --- the real thing -----------------------------------------------------------------------------------------


def test_a_small_demo_verifies_every_byte_and_leaves_picture_and_numbers(tmp_path):
    result = run("demo", "--size", "3MiB", "-D", 2, "-o", tmp_path / "out", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found == json.loads((tmp_path / "out" / "demo.json").read_text())
    assert found["verified"] is True
    assert found["files"] >= 1
    assert [fault["name"] for fault in found["faults"]] == ["plane_dead", "paths_lossy", "paths_congested"]
    assert all(fault["begin_s"] < fault["end_s"] <= found["seconds"] for fault in found["faults"])
    assert found["dropped"] > 0
    assert found["faults"][0]["dead_path_packets"] > 0
    png = (tmp_path / "out" / "demo.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    # Without a terminal: plain lines, every fault among them.
    assert "\x1b" not in result.stderr
    assert result.stderr.count("***") == 6


@pytest.mark.parametrize("size", [1, 2097152, 2097153])
def test_a_file_of_any_size_is_verified(tmp_path, size):
    result = run("demo", "--size", size, "-D", 1, "-o", tmp_path, "--json", "--no-picture")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["verified"], found["file_bytes"]) == (True, size)


def test_the_users_own_file_is_sent_and_left_alone(tmp_path):
    own = tmp_path / "own"
    own.write_bytes(b"0123456789" * 100_000)
    result = run("demo", "--file", own, "-D", 1, "-o", tmp_path, "--no-picture", "--planes", 2)
    assert result.returncode == 0, result.stderr
    assert "every byte arrived" in result.stdout
    assert own.read_bytes() == b"0123456789" * 100_000
    assert not (tmp_path / "demo.png").exists()


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A demo that is sending, and what there is of its files afterwards besides what there was."""

    def files():
        return {
            path for place in ("/dev/shm", tmp_path / "temporary") for path in Path(place).glob("*openmrc*")
        }

    # Others have temporary files of their own meanwhile.
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    before = files()
    with command("demo", "--size", "1MiB", "-D", 60, "-o", tmp_path / "out", cwd=tmp_path) as demo:
        while not any("Gb/s" in line for line in demo.errors):
            assert demo.process.poll() is None
        yield demo
    assert list((tmp_path / "out").iterdir()) == []
    assert files() <= before


def test_ctrl_c_ends_it_cleanly_and_leaves_nothing(started):
    started.interrupt()
    assert started.wait() == 130
    assert started.errors[-1] == "error: interrupted\n"
    assert "Traceback" not in started.error_text


def test_killed_it_leaves_nothing(started):
    started.kill()
    assert started.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--size", "many"], "'many' is not a size"),
        (["--size", "0"], "at least 1 byte"),
        (["--size", "900000GiB"], "choose a smaller --size"),
        (["--file", "/does/not/exist"], "/does/not/exist: No such file"),
        (["--file", "/dev/null"], "is empty"),
        (["--planes", "1"], "--planes"),
        (["-D", "0"], "--duration"),
        (["-o", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(tmp_path, arguments, says):
    result = run("demo", *arguments, cwd=tmp_path)
    assert result.returncode in (1, 2)
    assert says in one_line_error(result)
    assert result.stdout == ""


# --- arithmetic ---------------------------------------------------------------------------------------------


def test_figures_say_what_the_samples_say():
    found = figures(made_up())
    assert found.verified
    dead = found.faults[0]
    assert (dead.begin_s, dead.end_s) == (2.0, 8.0)
    assert dead.before_gbps == pytest.approx(8.0)
    assert dead.during_gbps == pytest.approx(8.0 * (6.0 - 0.1) / 6.0)
    assert dead.after_gbps == pytest.approx(8.0)
    assert dead.dip_ms == pytest.approx(100, abs=20)
    assert (dead.dead_path_packets, dead.dead_path_most_ms, dead.dead_path_last_ms) == (40, 7.0, 7.0)
    assert [fault.dip_ms for fault in found.faults[1:]] == [0.0, 0.0]
    assert found.dropped == 80


def test_one_wrong_checksum_or_missing_byte_is_not_verified():
    assert not figures(made_up(bad_digest=True)).verified
    missing = made_up()
    missing.receiver.leftover = 1
    assert not figures(missing).verified
    never = made_up()
    never.sent_files = 2
    assert not figures(never).verified


def test_windows_average_and_lose_nothing():
    windows = made_up().receiver.series.windows(SECOND // 50)
    total = [window.bps[VERIFIED] / 1e9 for window in windows]
    planes = [window.bps[VERIFIED + 1 :] for window in windows]
    assert sum(total) / len(total) == pytest.approx(8.0 * 9.9 / 10)
    assert all(
        sum(each) / 1e9 == pytest.approx(whole, rel=0.13) for each, whole in zip(planes, total, strict=True)
    )


def test_goodput_of_no_time_is_none_and_a_dip_that_is_not_there_is_0():
    series = made_up().receiver.series
    assert series.bps([VERIFIED], 5 * SECOND, 5 * SECOND) is None
    assert Series().bps([VERIFIED], 0, SECOND) is None
    assert dip_ms(series, 9 * SECOND, 15 * SECOND, 7.9) == 0


def test_a_dip_is_not_put_down_to_a_fault_that_begins_in_the_middle_of_it():
    series = made_up().receiver.series
    silence = 2 * SECOND
    began = series.time_ns[0]
    assert dip_ms(series, began + silence, began + 3 * SECOND, 7.9) == pytest.approx(100, abs=20)
    assert dip_ms(series, began + silence + SECOND // 20, began + 3 * SECOND, 7.9) == 0


def test_the_schedule_changes_the_network_at_each_begin_and_end():
    schedule = standard(10.0, 4)
    found = list(changes(schedule.faults))
    moments = [moment for moment, _, _ in found]
    assert moments == sorted(moments)
    assert len(moments) == 2 * len(schedule.faults)
    for fault in schedule.faults:
        assert [change for change in found if change[1] is fault] == [
            (fault.begin, fault, True),
            (fault.end, fault, False),
        ]
    assert {rule.ports[0] for rule in schedule.faults[0].rules} == {3}
    assert standard(10.0, 2).dead_plane == 1
    with pytest.raises(ArgumentError):
        standard(10.0, 1)


# --- picture ------------------------------------------------------------------------------------------------


def test_the_picture_names_every_fault_and_plane(tmp_path):
    outcome = made_up()
    picture.draw(outcome, tmp_path / "demo.svg")
    text = " ".join(re.findall(r">([^<>]+)</text>", (tmp_path / "demo.svg").read_text()))
    for fault in outcome.schedule.faults:
        assert fault.title in text
    for plane in range(PLANES):
        assert f"plane {plane}" in text
    assert "every byte verified" in text


def test_the_picture_of_a_failed_run_says_so(tmp_path):
    picture.draw(made_up(bad_digest=True), tmp_path / "demo.svg")
    assert "NOT every byte arrived" in (tmp_path / "demo.svg").read_text()


def test_without_matplotlib_there_is_a_reason_and_no_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "matplotlib", None)
    with pytest.raises(pictures.PictureError, match="matplotlib"):
        picture.draw(made_up(), tmp_path / "demo.png")
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_no_length_gives_no_picture(tmp_path):
    outcome = made_up()
    outcome.receiver.series = Series()
    with pytest.raises(pictures.PictureError, match="short"):
        picture.draw(outcome, tmp_path / "demo.png")
