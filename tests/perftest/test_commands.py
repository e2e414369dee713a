"""`openmrc write-bw` and `openmrc write-lat`: two processes, consistent figures, and errors."""

import json
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmrc.cli import _perftest, write_bw, write_lat
from openmrc.errors import ArgumentError, ConnectError
from openmrc.perftest import results
from openmrc.perftest.settings import SWEEP, Settings
from tests.helpers.commands import command, one_line_error, run
from tests.helpers.ranks import free_port

BANDWIDTH = " 65536      66646          16.25              7.06                 0.013461"
LATENCY = " 2       121            1960.13        10335.46     5997.85   5643.80  1630.18  9659.71  10335.46"


def wait_until_connected(client):
    """The header appears when both ends are connected."""
    while not client.line().startswith(" #bytes"):
        assert client.process.poll() is None


def loopback(test, *flags):
    result = run(test, "--loopback", "--json", *flags)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_client_and_server_show_the_same_figures_under_perftests_columns():
    port = free_port()
    with command("write-bw", "-p", port) as server:
        banner = [server.line() for _ in range(5)]
        assert "Waiting for client to connect" in banner[1]
        client = run("write-bw", "127.0.0.1", "-p", port, "-s", 4096, "-n", 1000, "-F", "--report_gbits")
        assert client.returncode == 0, client.stderr
        row = server.line()
        assert server.wait() == 0
    lines = client.stdout.splitlines()
    header = next(i for i, line in enumerate(lines) if line.startswith(" #bytes"))
    assert lines[header].split()[:2] == ["#bytes", "#iterations"]
    assert lines[header] == banner[4].rstrip("\n")
    assert lines[header + 1] == row.rstrip("\n")
    size, count, peak, average, rate = map(float, row.split())
    assert (size, count) == (4096, 1000)
    assert peak >= average > 0
    # Both are rounded.
    assert rate * 1e6 * 4096 * 8 / 1e9 == pytest.approx(average, abs=0.006)


@pytest.mark.parametrize("test", ["write-bw", "write-lat"])
def test_flags_for_devices_of_hardware_are_accepted_with_a_note(test):
    given = ("-d", "mlx5_0", "--ib-port", 1, "-x", 3, "--sl", 0, "-R")
    result = run(test, "--loopback", "--json", "-n", 10, *given)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["iterations"] == 10
    assert "note: no effect: --ib-dev, --ib-port, --gid-index, --sl, --rdma-cm; " in result.stderr
    assert run(test, "--loopback", "-n", 10).stderr == ""


def test_figures_of_bandwidth_add_up():
    result = loopback("write-bw", "-s", 100_000, "-n", 200, "-m", "1K", "-i", "1ms")
    assert result["iterations"] == 200
    assert result["bytes"] == 200 * 100_000
    assert sum(result["intervals"]["bytes"]) == result["bytes"]
    assert result["intervals"]["length_ms"] == 1
    assert result["goodput_gbps"] == pytest.approx(result["bytes"] * 8 / result["seconds"] / 1e9)
    assert result["messages_per_second"] == pytest.approx(200 / result["seconds"])
    # 98 packets of 1024 bytes each.
    assert result["data_packets"] - result["retransmits"] == 200 * 98


def test_a_duration_ends_by_time_and_both_directions_count():
    result = loopback("write-bw", "-s", 65536, "-D", 0.3, "-b", "-q", 2)
    assert result["bytes"] == result["iterations"] * 65536
    assert result["seconds"] >= 0.3


def test_a_sweep_is_a_list_with_every_size():
    found = loopback("write-bw", "-a", "-n", 20)
    assert [each["size"] for each in found] == list(SWEEP) == [2**power for power in range(1, 24)]
    assert {each["iterations"] for each in found} == {20}


def test_loss_and_a_dead_port_are_survived_and_show():
    result = loopback("write-bw", "-s", 65536, "-D", 0.6, "--loss", 0.01, "--fail-port", "3@0.3")
    assert result["retransmits"] > 0
    assert result["condemned"] > 0
    assert result["intervals"]["bytes"]
    assert result["bytes"] == result["iterations"] * 65536


@pytest.mark.parametrize("size", [1, 2, 220, 221, 4096, 100_000])
def test_latency_of_every_size_is_measured_and_ordered(size):
    result = loopback("write-lat", "-s", size, "-n", 50)
    assert (result["size"], result["iterations"]) == (size, 50)
    assert (
        0 < result["min_us"] <= result["p50_us"] <= result["p99_us"] <= result["p999_us"] <= result["max_us"]
    )
    assert result["typical_us"] == result["p50_us"]
    assert result["min_us"] <= result["avg_us"] <= result["max_us"]


def test_latency_is_shown_under_perftests_columns():
    result = run("write-lat", "--loopback", "-n", 20)
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith(" #bytes"))
    names = re.findall(r"(?:99|99\.9)% percentile\[usec\]|\S+", line)
    assert names == [
        "#bytes",
        "#iterations",
        "t_min[usec]",
        "t_max[usec]",
        "t_typical[usec]",
        "t_avg[usec]",
        "t_stdev[usec]",
        "99% percentile[usec]",
        "99.9% percentile[usec]",
    ]


# --- what cannot work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["write-bw", "127.0.0.1", "-p", "1"], "openmrc write-bw -p 1"),
        (["write-lat", "127.0.0.1", "-p", "1"], "openmrc write-lat -p 1"),
        (["write-bw", "no.such.host.invalid"], "no.such.host.invalid"),
        (["write-bw", "127.0.0.1", "--loopback"], "name no host"),
        (["write-bw", "--loopback", "-a", "-s", "5"], "not both"),
        (["write-bw", "--loopback", "-n", "5", "-D", "1"], "not both"),
        (["write-bw", "--loopback", "-s", "0"], "at least 1 byte;"),
        (["write-bw", "--loopback", "-D", "-1"], "'-1' is not a time"),
        (["write-bw", "--loopback", "-D", "0"], "more than 0 seconds"),
        (["write-bw", "--loopback", "-i", "1ms"], "at least 0.1 s"),
        (["write-bw", "--loopback", "-s", "2GiB"], "at most 1073741824 bytes"),
        (["write-bw", "--loopback", "--loss", "1"], "write 1% for percent"),
        (["write-bw", "--loopback", "--fail-port", "9@1"], "this device has ports 0 to 7"),
        (["write-bw", "--loopback", "--impair", "loss=1%,ports=12"], "this device has ports 0 to 7"),
        (["write-bw", "--loopback", "--planes", "1", "--fail-port", "1@1"], "has only port 0"),
        (["write-bw", "--loopback", "-q", "0"], "queue pairs must be 1"),
        (["write-bw", "--loopback", "--planes", "17"], "planes must be 1 to 16"),
        (["write-bw", "--loopback", "--evs", "0"], "entropy values must be"),
        (["write-bw", "--loopback", "--cpu", "99999"], "processor 99999"),
        (["write-bw", "--loopback", "--cpu", "a"], "--cpu a"),
        (["write-bw", "--loopback", "--fail-port", "x@1"], "--fail-port x@1"),
        (["write-bw", "--loopback", "--impair", "loss=2"], "write 2%"),
        (["write-bw", "--loopback", "--addresses", "192.0.2.7"], "192.0.2.7"),
        (["write-bw", "--loopback", "-m", "100"], "--mtu"),
        (["write-bw", "--loopback", "--frobnicate"], "--frobnicate"),
        (["write-lat", "--loopback", "-n", "0"], "--iters"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(arguments, says):
    result = run(*arguments)
    assert result.returncode in (1, 2)
    assert says in one_line_error(result)
    assert result.stdout == ""


def test_a_server_of_the_other_test_refuses_and_says_so():
    port = free_port()
    with command("write-lat", "-p", port) as server:
        server.line()
        client = run("write-bw", "127.0.0.1", "-p", port)
        assert client.returncode == 1
        reason = "this is a server for write-lat, not for write-bw"
        assert reason in one_line_error(client)
        assert run("write-lat", "127.0.0.1", "-p", port, "-n", 10).returncode == 0
        assert server.wait() == 0
    assert f"was not served: {reason}" in server.error_text


@pytest.mark.parametrize("test", ["write-bw", "write-lat"])
@pytest.mark.parametrize("who", ["server", "client"])
def test_an_end_that_dies_in_the_middle_is_noticed_by_the_other(test, who):
    port = free_port()
    with command(test, "-p", port) as server:
        server.line()
        with command(test, "127.0.0.1", "-p", port, "-n", 10**9, *SLOW[test]) as client:
            wait_until_connected(client)
            dies, lives = (server, client) if who == "server" else (client, server)
            dies.kill()
            assert lives.wait() == 1
    assert lives.error_text.startswith("error: ")
    assert lives.error_text.count("\n") == 1


SLOW = {"write-bw": ["-s", 65536], "write-lat": []}


@pytest.mark.parametrize(
    ("test", "flags"),
    [
        ("write-bw", ["-D", 1000]),
        ("write-bw", ["-D", 1000, "-b"]),
        ("write-bw", ["-a", "-D", 1000]),
        ("write-lat", ["-n", 10**9]),
    ],
)
def test_ctrl_c_ends_both_ends_with_the_results_so_far(test, flags):
    port = free_port()
    with command(test, "-p", port) as server:
        while not server.line().startswith(" #bytes"):
            pass
        with command(test, "127.0.0.1", "-p", port, *flags) as client:
            wait_until_connected(client)
            client.works(0.5)  # The 100 round trips that warm it up take less.
            client.interrupt()
            row = client.line()
            assert client.wait() == 130
        assert client.error_text == "error: interrupted\n"
        assert int(row.split()[1]) > 0
        assert server.line() == row
        assert server.wait() == 0


def test_ctrl_c_with_json_prints_the_results_so_far():
    port = free_port()
    with command("write-bw", "-p", port) as server:
        server.line()
        with command("write-bw", "127.0.0.1", "-p", port, "-a", "-D", "0.5s", "--json") as client:
            client.works(2)  # Two threads, half a second for each size.
            client.interrupt()
            found = json.loads(client.line())
            assert client.wait() == 130
    assert [each["size"] for each in found] == list(SWEEP)[: len(found)]
    # The last one is whole if the signal came between two sizes.
    assert found
    assert not any(each["interrupted"] for each in found[:-1])


@pytest.mark.parametrize(("columns", "row"), [(write_bw.COLUMNS, BANDWIDTH), (write_lat.COLUMNS, LATENCY)])
@pytest.mark.parametrize("width", [80, 60, 150])
def test_a_narrow_terminal_shows_every_figure_with_its_name(monkeypatch, capsys, columns, row, width):
    monkeypatch.setattr(_perftest, "_width", lambda: width)
    table = _perftest.Table("Test", [("Number of qps", 1)], columns, lambda result: row)
    table.print_header()
    table.print_row({})
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for word in [*columns.split(), *row.split()]:
        assert word in shown


def test_an_interval_is_a_line_while_the_run_goes_on():
    result = run("write-bw", "--loopback", "-D", "1s", "-i", "200ms")
    assert result.returncode == 0, result.stderr
    lines = re.findall(r"^ +([0-9.]+)-([0-9.]+) +s +.* ([0-9.]+) Gb/s +([0-9]+) resent$", result.stdout, re.M)
    assert len(lines) >= 4
    assert [start for start, *_ in lines[1:]] == [end for _, end, *_ in lines[:-1]]
    assert all(float(gbps) > 0 for _, _, gbps, _ in lines)


def test_host_and_port_are_named_in_either_way():
    for how in (lambda port: [f"127.0.0.1:{port}"], lambda port: ["127.0.0.1", "--port", port]):
        port = free_port()
        with command("write-bw", "-p", port) as server:
            server.line()
            client = run("write-bw", *how(port), "-n", 10)
            assert client.returncode == 0, client.stderr
            assert server.wait() == 0
    wrong = run("write-bw", "127.0.0.1:1", "--port", "2")
    assert wrong.returncode == 2
    assert "name one of them" in one_line_error(wrong)


# --- arithmetic ---------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=300))
def test_percentiles_are_values_with_enough_below_them(values):
    ordered = sorted(values)
    for share in (0.5, 0.99, 0.999):
        found = results.percentile(ordered, share)
        assert found in ordered
        assert sum(value <= found for value in ordered) >= share * len(ordered)
        assert sum(value < found for value in ordered) < share * len(ordered)


@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=50))
def test_latency_figures_are_those_of_the_statistics_module(values):
    found = results.latency(2, values)
    assert found.avg_us == pytest.approx(statistics.mean(values) / 1e3)
    assert found.stdev_us == pytest.approx(statistics.pstdev(values) / 1e3)


def test_the_peak_is_the_best_ten_milliseconds():
    quiet, busy = 100_000, 1_000_000
    bytes_per_ms = [quiet] * 50 + [busy] * 10 + [quiet] * 50 + [10**9]
    sent = {"buckets": bytes_per_ms, "posted": bytes_per_ms, "bucket_ns": 1_000_000}
    assert results.peak_gbps(sent) == pytest.approx(busy * 8 / 1e6)
    assert results.peak_gbps({**sent, "buckets": [busy] * 5}) == 0


@given(st.integers(2, 40), st.integers(0, 200), st.integers(0, 30))
def test_a_burst_of_completions_is_no_peak(rate, begin, pause):
    # Messages leave at a constant rate, and the thread that counts completions sleeps for a while.
    posted = [rate * 1000] * 400
    held = sum(posted[begin : begin + pause])
    completed = [0 if begin <= at < begin + pause else each for at, each in enumerate(posted)]
    completed[begin + pause] += held
    sent = {"buckets": completed, "posted": posted, "bucket_ns": 1_000_000}
    assert results.peak_gbps(sent) == pytest.approx(rate * 1000 * 8 / 1e6)


def test_a_run_in_which_nothing_completed_gives_no_figures():
    with pytest.raises(ConnectError):
        results.latency(2, [])
    nothing = {
        "messages": 0,
        "bytes": 0,
        "elapsed_ns": 0,
        "buckets": [],
        "bucket_ns": 1,
        "start_ns": 0,
        "posted": [],
    }
    with pytest.raises(ConnectError):
        results.bandwidth(2, [nothing], {})


def test_short_messages_are_posted_and_completed_in_lists_and_long_ones_alone():
    short, long = Settings(test="write-bw", sizes=(64, 1 << 20)).runs()
    assert short.post_list > 1
    assert short.cq_mod > 1
    assert (long.post_list, long.cq_mod) == (1, 1)


def test_latency_has_no_duration_and_one_queue_pair():
    for wrong in ({"duration": 1.0}, {"qps": 2}, {"bidirectional": True}):
        with pytest.raises(ArgumentError):
            Settings(test="write-lat", sizes=(2,), **wrong)
