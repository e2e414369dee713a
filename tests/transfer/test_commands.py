"""`openmrc serve` and `openmrc put` as users see them: two processes, files, and errors."""

import contextlib
import json
import os
import random
import re
import resource
import signal
import socket
import time

import pytest
import xxhash

from tests.helpers.commands import command, one_line_error, run
from tests.helpers.ends import eventually


@contextlib.contextmanager
def serving(directory, *flags):
    """A server on a free port; yields the process and its address."""
    with command(
        "serve", directory, "--port", 0, "--bind", "127.0.0.1", "--no-sync", "--json", *flags
    ) as server:
        yield server, f"127.0.0.1:{server.event()['port']}"


@pytest.fixture
def inbox(tmp_path):
    directory = tmp_path / "inbox"
    directory.mkdir()
    return directory


def make(path, size, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def huge(directory):
    """A file whose transfer takes long."""
    path = directory / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    return path


SLOWLY = ["--impair", "delay=100%,by=20ms"]


def everything_below(directory):
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


INTERVALS = ["-i", "100ms"]


def wait_until_sending(server, put, more_than=0):
    """Returns once data, so many bytes in an interval, have arrived at a server that tells of intervals."""
    while server.events_until("interval")[-1]["bytes"] <= more_than:
        assert put.process.poll() is None


def test_files_arrive_with_their_bytes_names_modes_and_checksums(tmp_path, inbox):
    big = make(tmp_path / "big.bin", 9_000_001)
    script = make(tmp_path / "run.sh", 10)
    script.chmod(0o755)
    empty = make(tmp_path / "empty", 0)
    with serving(inbox, "--allow-executable") as (server, address):
        result = run("put", big, script, empty, address, "--json")
        assert result.returncode == 0, result.stderr
        events = server.events_until("done")
    report = json.loads(result.stdout)
    assert report["complete"] is True
    for path in (big, script, empty):
        assert (inbox / path.name).read_bytes() == path.read_bytes()
        digest = xxhash.xxh3_128(path.read_bytes()).hexdigest()
        assert [f["digest"] for f in report["files"] if f["path"] == path.name] == [digest]
        assert [e["digest"] for e in events if e.get("path") == path.name] == [digest]
    assert (inbox / "run.sh").stat().st_mode & 0o777 == 0o755 & ~umask()
    assert everything_below(inbox) == {"big.bin", "run.sh", "empty"}
    assert all(plane["tx_packets"] > 0 for plane in report["planes"])
    assert len(report["planes"]) == 8


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_directory_arrives_with_all_below_it(tmp_path, inbox):
    tree = tmp_path / "tree"
    make(tree / "a" / "b" / "deep", 100)
    make(tree / "flat", 5000)
    make(tree / "ünïcode 名前", 1)
    (tree / "hollow").mkdir()
    (tree / "linked").symlink_to("flat")
    with serving(inbox) as (_, address):
        assert run("put", tree, address).returncode == 0
    names = {"a", "a/b", "a/b/deep", "flat", "hollow", "linked", "ünïcode 名前"}
    assert everything_below(inbox) == {"tree"} | {f"tree/{name}" for name in names}
    assert (inbox / "tree" / "linked").read_bytes() == (tree / "flat").read_bytes()


def test_several_senders_are_served_at_a_time(tmp_path, inbox):
    files = [make(tmp_path / f"{i}.bin", 3_000_000, seed=i) for i in range(3)]
    with serving(inbox) as (_, address), contextlib.ExitStack() as stack:
        senders = [stack.enter_context(command("put", file, address)) for file in files]
        assert [sender.wait() for sender in senders] == [0, 0, 0]
    for file in files:
        assert (inbox / file.name).read_bytes() == file.read_bytes()


def test_a_lossy_corrupting_network_changes_no_byte(tmp_path, inbox):
    file = make(tmp_path / "file", 4_000_000)
    with serving(inbox) as (_, address):
        flags = ["--impair", "loss=0.02", "--impair", "corrupt=0.01", "--impair", "duplicate=0.02"]
        result = run("put", file, address, "--json", *flags)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["transport"]["retransmits"] > 0
    assert (inbox / "file").read_bytes() == file.read_bytes()


# --- names that are taken -----------------------------------------------------------------------------------


def test_a_taken_name_is_refused_and_the_other_files_arrive(tmp_path, inbox):
    (inbox / "taken").write_text("mine")
    taken, free = make(tmp_path / "taken", 1000), make(tmp_path / "free", 1000)
    with serving(inbox) as (_, address):
        result = run("put", taken, free, address)
    assert result.returncode == 1
    assert "exists already" in one_line_error(result)
    assert (inbox / "taken").read_text() == "mine"
    assert (inbox / "free").read_bytes() == free.read_bytes()


def test_replace_and_update_do_what_they_say(tmp_path, inbox):
    same, other = make(tmp_path / "same", 5000), make(tmp_path / "other", 5000)
    (inbox / "same").write_bytes(same.read_bytes())
    (inbox / "other").write_bytes(bytes(5000))
    before = (inbox / "same").stat().st_ino
    with serving(inbox, "--allow-replace", "--allow-digests") as (_, address):
        result = run("put", same, other, address, "--if-exists", "update", "--json")
        assert result.returncode == 0, result.stderr
        assert [f["status"] for f in json.loads(result.stdout)["files"]] == ["unchanged", "stored"]
        assert (inbox / "same").stat().st_ino == before
        assert (inbox / "other").read_bytes() == other.read_bytes()
        assert run("put", same, address, "--if-exists", "replace").returncode == 0
        assert (inbox / "same").stat().st_ino != before


def test_a_file_cannot_take_the_place_of_a_directory_nor_go_through_a_link(tmp_path, inbox):
    outside = tmp_path / "outside"
    outside.mkdir()
    (inbox / "name").mkdir()
    (inbox / "way").symlink_to(outside)
    make(tmp_path / "way" / "file", 10)
    name = make(tmp_path / "name", 10)
    with serving(inbox, "--allow-replace") as (_, address):
        result = run("put", name, tmp_path / "way", address, "--if-exists", "replace", "--json")
    assert result.returncode == 1
    assert [f["status"] for f in json.loads(result.stdout)["files"]] == ["failed", "failed"]
    assert everything_below(outside) == set()


def test_two_sources_with_one_name_are_refused_before_anything_is_sent(tmp_path):
    result = run("put", make(tmp_path / "a" / "x", 1), make(tmp_path / "b" / "x", 1), "127.0.0.1:1")
    assert result.returncode == 2
    assert "would both become x" in one_line_error(result)


# --- breaking off -------------------------------------------------------------------------------------------


def test_ctrl_c_in_the_middle_leaves_nothing_under_the_name(tmp_path, inbox):
    with serving(inbox, *INTERVALS) as (server, address):
        with command("put", huge(tmp_path), address, *SLOWLY) as put:
            wait_until_sending(server, put)
            put.interrupt()
            assert put.wait() == 130
        assert put.error_text == "error: interrupted\n"
        told = [event for event in server.events_until("broken") if event["kind"] != "interval"]
        failed, broken = told[-2:]
        assert (failed["kind"], failed["path"]) == ("failed", "huge")
        assert "closed the connection" in broken["reason"] or "broke" in broken["reason"]
        assert everything_below(inbox) == set()
        # The server still works.
        assert run("put", make(tmp_path / "next", 10), address).returncode == 0


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_a_server_that_ends_in_the_middle_leaves_nothing_and_the_sender_says_so(tmp_path, inbox, how):
    with (
        serving(inbox, *INTERVALS) as (server, address),
        command("put", huge(tmp_path), address, *SLOWLY) as put,
    ):
        wait_until_sending(server, put)
        getattr(server, how)()
        assert server.wait() == {"interrupt": 130, "kill": -9}[how]
        assert put.wait() == 1
    assert put.error_text.startswith("error: ")
    assert put.error_text.count("\n") == 1
    assert "nothing was stored" in put.error_text
    assert everything_below(inbox) == set()


def test_planes_that_all_fall_silent_end_the_transfer_with_a_reason(tmp_path, inbox):
    with serving(inbox) as (_, address):
        silence = ["--impair", "loss=100%,start=1s", "--peer-timeout", 1]
        # The transport gives the peer up after 50 s.
        result = run("put", huge(tmp_path), address, *SLOWLY, *silence, timeout=200)
    assert result.returncode == 1
    # Either end may be the first to report the failure.
    reasons = ("does not answer on any plane", "closed the connection; nothing was stored")
    assert any(reason in one_line_error(result) for reason in reasons)
    assert everything_below(inbox) == set()


@pytest.mark.parametrize("seconds", [2, pytest.param(15, marks=pytest.mark.long)])
@pytest.mark.parametrize("stopped", ["server", "put"])
def test_an_end_that_is_stopped_for_a_while_goes_on(tmp_path, inbox, stopped, seconds):
    size = 200_000_000
    file = huge(tmp_path)
    os.truncate(file, size)
    with (
        serving(inbox, *INTERVALS) as (server, address),
        command("put", file, address, *SLOWLY) as put,
    ):
        wait_until_sending(server, put)
        process = {"server": server, "put": put}[stopped].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        assert put.wait() == 0, put.error_text
    assert (inbox / "huge").stat().st_size == size


def test_a_file_that_shrinks_while_it_is_sent_fails_alone(tmp_path, inbox):
    small = make(tmp_path / "small", 10)
    with serving(inbox, *INTERVALS) as (server, address):
        with command("put", huge(tmp_path), small, address, *SLOWLY) as put:
            wait_until_sending(server, put)
            os.truncate(tmp_path / "huge", 1000)
            assert put.wait() == 1
        assert "huge was not stored: changed while it was being sent" in put.error_text
    assert everything_below(inbox) == {"small"}


def test_a_disk_that_takes_no_more_fails_that_file_alone(tmp_path, inbox):
    with serving(inbox) as (server, address):
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
        big, small = make(tmp_path / "big", 9_000_000), make(tmp_path / "small", 1_000_000)
        result = run("put", big, small, address)
    assert result.returncode == 1
    assert "big was not stored: File too large" in one_line_error(result)
    assert everything_below(inbox) == {"small"}
    assert (inbox / "small").read_bytes() == small.read_bytes()


def test_files_travel_over_ipv6_too(tmp_path, inbox):
    file = make(tmp_path / "file", 3_000_000)
    with command("serve", inbox, "--port", 0, "--bind", "::1", "--json") as server:
        result = run("put", file, f"[::1]:{server.event()['port']}", "--json")
    assert result.returncode == 0, result.stderr
    assert {plane["address"] for plane in json.loads(result.stdout)["planes"]} == {"::1"}
    assert (inbox / "file").read_bytes() == file.read_bytes()


def test_named_planes_are_used_in_their_order(tmp_path, inbox):
    file = make(tmp_path / "file", 3_000_000)
    here, there = ["127.9.0.1", "127.9.0.2:4900"], ["127.9.1.1", "127.9.1.2"]
    with serving(inbox, "--allow-replace", "--addresses", ",".join(there)) as (_, address):
        result = run("put", file, address, "--addresses", ",".join(here), "--json")
        assert result.returncode == 0, result.stderr
        again = run("put", file, address, "--addresses", "127.9.0.3", "--if-exists", "replace")
    planes = json.loads(result.stdout)["planes"]
    assert [plane["address"] for plane in planes] == ["127.9.0.1", "127.9.0.2"]
    assert all(plane["tx_packets"] > 0 for plane in planes)
    assert again.returncode == 0, again.stderr
    assert "planes: 1 here, 2 at" in again.stderr


# --- what a user sees meanwhile ----------------------------------------------------------------------------


def test_no_size_of_file_leaves_less_than_nothing_in_flight(tmp_path, inbox):
    # The receiver counts in units of 256 bytes.
    with serving(inbox) as (_, address):
        for length in (1, 100, 255, 257, 5000, 70_001):
            result = run("put", make(tmp_path / f"f{length}", length), address, "--json")
            assert result.returncode == 0, result.stderr
            assert json.loads(result.stdout)["transport"]["in_flight"] >= 0


def test_a_port_that_the_device_lacks_is_refused_with_those_it_has(tmp_path, inbox):
    with serving(inbox) as (_, address):
        result = run("put", make(tmp_path / "file", 10), address, "--impair", "loss=1%,ports=12")
    assert result.returncode == 2
    assert "port 12 cannot be impaired: this device has ports 0 to 7" in one_line_error(result)


def test_both_ends_print_a_line_for_each_interval(tmp_path, inbox):
    with serving(inbox, "-i", "100ms") as (server, address):
        file = make(tmp_path / "file", 40_000_000)
        result = run("put", file, address, *SLOWLY, "-i", "100ms")
        assert result.returncode == 0, result.stderr
        there = server.events_until("done")
    line = r"^ +[0-9.]+-[0-9.]+ +s .* [GM]b/s  .* of .*, 8 of 8 planes$"
    here = re.findall(line, result.stdout, re.MULTILINE)
    assert len(here) >= 2
    intervals = [event for event in there if event["kind"] == "interval"]
    assert len(intervals) >= 2
    assert all(0 <= each["bytes"] <= 40_000_000 and each["seconds"] > 0 for each in intervals)


def test_ctrl_c_says_what_was_stored(tmp_path, inbox):
    small = make(tmp_path / "small", 1000)
    with (
        serving(inbox) as (_, address),
        command("put", small, huge(tmp_path), address, *INTERVALS, *SLOWLY) as put,
    ):
        assert eventually(lambda: (inbox / "small").exists(), seconds=60)
        # That much of the second has arrived, and the answer to the first before it.
        while not re.search(r"\d [MG]B of ", put.line()):
            assert put.process.poll() is None
        put.interrupt()
        lines = [line for line in put.process.stdout.read().splitlines() if not line.endswith(" planes")]
        assert put.wait() == 130
    assert lines[0].startswith("small  1 kB")
    assert "interrupted; 1 of 2 files stored" in lines[1]
    assert "had arrived" in lines[1]


# --- what cannot work ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["put"], "Missing argument"),
        (["put", "/etc/hostname"], "Missing argument"),
        (["put", "/does/not/exist", "127.0.0.1"], "/does/not/exist: No such file"),
        (["put", "/dev/null", "127.0.0.1"], "neither a file nor a directory"),
        (["put", "/etc/hostname", "127.0.0.1:x"], "not a port number"),
        (["put", "/etc/hostname", "no.such.host.invalid"], "no.such.host.invalid"),
        (["put", "/etc/hostname", "127.0.0.1:1"], "openmrc serve"),
        (["put", "/etc/hostname", "127.0.0.1:1", "--if-exists", "maybe"], "--if-exists"),
        (["put", "/etc/hostname", "127.0.0.1:1", "--impair", "love=1%"], "KIND"),
        (["serve"], "Missing argument"),
        (["serve", "/does/not/exist"], "/does/not/exist: No such file"),
        (["serve", "/etc/hostname"], "/etc/hostname: Not a directory"),
        (["serve", "/tmp", "--addresses", "nonsense0"], "neither an address nor an interface"),
        (["serve", "/tmp", "--addresses", "192.0.2.1", "-p", "0"], "192.0.2.1"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(arguments, says):
    result = run(*arguments)
    assert result.returncode in (1, 2)
    assert says in one_line_error(result)
    assert result.stdout == ""


def test_a_taken_port_is_named(inbox):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", inbox, "--bind", "127.0.0.1", "-p", port)
    assert result.returncode == 1
    assert str(port) in one_line_error(result)


def test_once_ends_after_one_sender_with_its_success(tmp_path, inbox):
    file = make(tmp_path / "file", 100)
    with serving(inbox, "--once") as (server, address):
        assert run("put", file, address).returncode == 0
        assert server.wait() == 0
    with serving(inbox, "--once") as (server, address):
        assert run("put", file, address).returncode == 1
        assert server.wait() == 1


def test_what_is_no_sender_is_sent_away(inbox):
    with serving(inbox) as (server, address):
        host, port = address.split(":")
        for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x05hello", b""):
            with socket.create_connection((host, int(port)), timeout=20) as stranger:
                stranger.sendall(nonsense)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""
            assert server.event()["kind"] == "broken"
        assert server.process.poll() is None
