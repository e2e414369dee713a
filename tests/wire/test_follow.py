"""openmrc decode --follow: the packets of an interface, as they come."""

import ctypes
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager

import pytest

from openmrc import wire
from openmrc.cli import main
from openmrc.errors import ArgumentError
from openmrc.lab.system import entered, run
from openmrc.wire.live import LiveCapture, cut
from tests.helpers.labs import needs_root

WRITE = wire.Packet(dest_qp=0x2A, psn=7, body=wire.Write(va=0x1000, rkey=1, dma_len=3), payload=b"abc")
DATA = WRITE.to_bytes(src="2001:db8::1", dst="2001:db8::2", ev=0xC0010002, ethernet=wire.Ethernet())
ETHERNET = wire.LinkType.ETHERNET
PR_CAPBSET_DROP, CAP_NET_RAW = 24, 13


def inside(namespace, *words):
    return ["ip", "netns", "exec", namespace, *map(str, words)]


@contextmanager
def following(namespace, *options, interface="lo"):
    """A running openmrc decode --follow that has begun to capture."""
    command = inside(namespace, sys.executable, "-m", "openmrc", "decode", "--follow", interface, *options)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr.readline() == f"following {interface}; Ctrl-C ends it\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def interrupted(process):
    process.send_signal(signal.SIGINT)
    out, remarks = process.communicate(timeout=60)
    return out.splitlines(), remarks


def write(namespace, *options):
    words = (sys.executable, "-m", "openmrc", "write-bw", "--loopback", *options)
    done = subprocess.run(inside(namespace, *words), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@contextmanager
def sender(namespace, interface="lo"):
    """A socket that sends frames as they are."""
    with entered(namespace):
        frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        frames.bind((interface, 0))
    with closing(frames):
        yield frames


@needs_root
@pytest.mark.skipif(shutil.which("dumpcap") is None, reason="dumpcap is not installed")
def test_it_shows_what_another_capture_of_the_interface_has(loopback, tmp_path, capsys):
    # The kernel cuts before anybody captures.
    run(["ip", "-n", loopback, "link", "set", "lo", "gso_max_segs", "1"])
    file = tmp_path / "other.pcapng"
    file.touch(0o666)
    command = inside(loopback, "dumpcap", "-q", "-B", 256, "-i", "lo", "-w", file)
    other = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while "File: " not in other.stderr.readline():
        assert other.poll() is None
    with following(loopback, "--json") as process:
        write(loopback, "-n", "20", "-s", "20000", "--planes", "4")
        lines, remarks = interrupted(process)
    other.send_signal(signal.SIGINT)
    told = other.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "0 dropped by the kernel" in remarks
    assert main(["decode", "--json", "--mrc", str(file)]) == 0
    expected = capsys.readouterr().out.splitlines()

    def seen(rows):
        return Counter((row["summary"], row["ok"], row["wire_len"]) for row in map(json.loads, rows))

    assert len(lines) > 20 * 5, told
    assert seen(lines) == seen(expected), told


@needs_root
def test_large_sends_are_shown_as_the_packets_that_travel(loopback):
    with following(loopback, "--json") as process:
        write(loopback, "-n", "20", "-s", "65536", "--planes", "2")
        lines, _ = interrupted(process)
    rows = [json.loads(line) for line in lines]
    assert [row["summary"] for row in rows if not row["ok"]] == []
    assert {row["icrc"] for row in rows} == {"good"}
    written = sum(row["payload_len"] for row in rows if row["packet"]["body"]["kind"] == "Write")
    assert written >= 20 * 65536
    times = [row["time_ns"] for row in rows]
    assert all(times)


@needs_root
def test_malformed_packets_never_end_it(loopback):
    seeded = random.Random(5)
    with following(loopback) as process, sender(loopback) as frames:
        for _ in range(300):
            frames.send(seeded.randbytes(seeded.randint(14, 200)))
            mangled = bytearray(DATA[: seeded.randint(14, len(DATA))])
            for _ in range(seeded.randint(0, 6)):
                mangled[seeded.randrange(len(mangled))] = seeded.randrange(256)
            frames.send(bytes(mangled))
        frames.send(DATA)
        while "WRITE_ONLY qp 0x00002a psn 7 msn 0 va 0x1000 dma_len 3 len 3" not in process.stdout.readline():
            assert process.poll() is None
        _, remarks = interrupted(process)
    assert process.returncode == 0
    assert "601 packets received" in remarks


@needs_root
def test_other_traffic_is_left_out_and_a_count_ends_it(loopback):
    other = WRITE.to_bytes(src="2001:db8::1", dst="2001:db8::2", dport=53, ethernet=wire.Ethernet())
    with following(loopback, "--count", "2") as process, sender(loopback) as frames:
        for data in (other, DATA, other, DATA, DATA):
            frames.send(data)
        lines, remarks = process.communicate(timeout=60)
    assert [line.split()[0] for line in lines.splitlines()] == ["2", "4"]
    assert "2 to MRC's ports" in remarks
    with following(loopback, "--udp-port", "53", "--count", "1") as process, sender(loopback) as frames:
        frames.send(DATA)
        frames.send(other)
        lines, _ = process.communicate(timeout=60)
    assert lines.startswith("    2 ")


@needs_root
def test_an_interface_that_is_down_is_waited_for_and_one_that_is_removed_ends_it(loopback):
    run(["ip", "-n", loopback, "link", "add", "p0", "type", "veth", "peer", "p1"])
    for name in ("p0", "p1"):
        run(["ip", "-n", loopback, "link", "set", name, "up"])
    with following(loopback, interface="p0") as process:
        for state in ("down", "up"):
            run(["ip", "-n", loopback, "link", "set", "p0", state])
        with sender(loopback, "p1") as frames:
            frames.send(DATA)
        assert "WRITE_ONLY" in process.stdout.readline()
        run(["ip", "-n", loopback, "link", "delete", "p0"])
        remarks = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert remarks.splitlines()[-1] == "error: interface p0 is gone"


@needs_root
def test_a_tag_that_the_kernel_takes_out_of_a_frame_is_shown(loopback):
    run(["ip", "-n", loopback, "link", "add", "p0", "type", "veth", "peer", "p1"])
    for name in ("p0", "p1"):
        run(["ip", "-n", loopback, "link", "set", name, "up"])
    tagged = WRITE.to_bytes(src="2001:db8::1", dst="2001:db8::2", ethernet=wire.Ethernet(vlan=0x2064))
    with entered(loopback):
        capture = LiveCapture("p0")
    with capture, sender(loopback, "p1") as frames:
        for data in (tagged, DATA):
            frames.send(data)
        found = []
        while len(found) < 2:
            frame = next(capture)
            if frame.packet == WRITE:
                found.append(frame)
    assert [frame.ethernet.vlan for frame in found] == [0x2064, None]
    assert [frame.wire_len for frame in found] == [len(tagged), len(DATA)]


def test_without_the_privilege_it_says_so_in_one_line():
    libc = ctypes.CDLL(None)

    def unprivileged():
        libc.prctl(PR_CAPBSET_DROP, CAP_NET_RAW, 0, 0, 0)

    done = subprocess.run(
        [sys.executable, "-m", "openmrc", "decode", "--follow", "lo"],
        preexec_fn=unprivileged if os.geteuid() == 0 else None,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "error: live packets need root or CAP_NET_RAW\n")


def test_an_interface_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(ArgumentError, match=r"no interface 'eth99'; there are .*lo.* and any"):
        LiveCapture("eth99")
    assert main(["decode", "--follow", "eth99"]) == 2
    assert main(["decode", "--follow", "lo", "--hex", "00"]) == 2
    assert main(["decode", "--follow", "--hex", "00"]) == 2


def piece(data, start, size, kind=5):
    """A piece as the kernel describes it."""
    return struct.pack("=BBHHHH", 1, kind, start + 8, size, start, 6) + data


@pytest.mark.parametrize("ends", [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")])
@pytest.mark.parametrize("vlan", [None, 5])
def test_a_piece_is_cut_as_the_kernel_cuts_it(ends, vlan):
    ethernet = wire.Ethernet(vlan=vlan) if vlan else wire.Ethernet()
    packets = [
        wire.Packet(dest_qp=1, psn=psn, body=wire.Write(va=0, rkey=1, dma_len=size), payload=b"x" * size)
        for psn, size in enumerate((100, 100, 40))
    ]
    whole = [each.to_bytes(src=ends[0], dst=ends[1], ethernet=ethernet) for each in packets]
    start = 14 + (4 if vlan else 0) + (20 if "." in ends[0] else 40)
    headers = whole[0][: start + 8]
    payloads = [data[start + 8 :] for data in whole]
    found = cut(piece(headers + b"".join(payloads), start, len(payloads[0])), ETHERNET)
    frames = [wire.decode(data, ETHERNET) for data in found]
    assert [frame.packet for frame in frames] == packets
    assert [frame.wire_len for frame in frames] == [len(data) for data in whole]


def test_a_piece_that_is_not_understood_stays_whole():
    headers = DATA[: 14 + 40 + 8]
    for kind, start in ((1, 54), (4, 54), (5, 50), (5, 60_000)):
        assert cut(piece(DATA, start, 10, kind), ETHERNET) == [DATA]
    assert cut(piece(b"", 54, 10), ETHERNET) == [b""]
    assert cut(piece(headers, 54, 10), ETHERNET)[0][:12] == headers[:12]
