"""The shell scripts for Linux switches, run by the shell, ``ip``, ``sysctl`` and ``tc`` of this machine."""

import json
import os
import re
import shutil
import subprocess

import pytest

from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import render, verify
from openmrc.switchconf.parse import PARSERS, Files
from tests.helpers import uml
from tests.helpers.switches import namespace, run_in

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2 for network namespaces"
)

SWITCH = "p0/t0-1"
# From a port of 10 Mb/s to one of 1.6 Tb/s: the thresholds and the rate of red scale with the rate.
RATES = ["20M", "2G", "100G", "400G", "800G", "3.2T"]


def fabric_of(rate, **changes):
    base = {"hosts": 16, "nic": {"rate": rate}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    return Fabric(Specification.model_validate({**base, **changes}))


@pytest.mark.parametrize("rate", RATES)
def test_tc_accepts_every_command_of_qos_sh(rate, tmp_path):
    render(fabric_of(rate), "linux", tmp_path / "out")
    ports = PARSERS["linux"](Files(tmp_path / "out" / SWITCH)).addresses
    with namespace(ports) as space:
        run, log = run_in(space, tmp_path / "out" / SWITCH / "qos.sh", tmp_path)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        if log is None:
            text = subprocess.run(["tc", "-n", space, "-j", "qdisc"], capture_output=True, text=True).stdout
            kinds = [(q["dev"], q["kind"]) for q in json.loads(text)]
            assert sum(kind == "red" for _, kind in kinds) == 4
            assert sum(kind == "prio" for _, kind in kinds) == 8
        else:
            # Per port: two queues, three filters, and the data queue itself.
            assert len(log) == 8 * 6
            assert {line.partition(" ")[0] for line in log} <= {"0", "2"}


# Under a kernel with the queues: those that there are after each qos.sh, after a second run of the last one,
# and the packets that each queue of two ports has seen after IPv6 packets with these code points. Programs
# start slowly there.
QUEUES = """
import json, socket, subprocess
def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else exit(f"{{words}}: {{done.stderr}}")
def queues():
    return run("tc", "qdisc", "show"), [run("tc", "filter", "show", "dev", port) for port in ("up0", "down0")]
def packets(port, codes):
    sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sender.bind((port, 0x86DD))
    for code in codes:
        first = (6 << 28) | (code << 22) | (2 << 20)
        head = first.to_bytes(4, "big") + bytes([0, 8, 17, 64])
        sender.send(bytes(12) + bytes([0x86, 0xDD]) + head + bytes(32) + bytes(8))
    shown = json.loads(run("tc", "-j", "-s", "qdisc", "show", "dev", port))
    return {{each["handle"]: each["packets"] for each in shown}}
for port in {ports!r}:
    run("ip", "link", "add", port, "type", "dummy")
    run("ip", "link", "set", port, "mtu", "9216", "up")
found = {{}}
for script in {scripts!r}:
    run(script)
    found[script] = queues()
run(script)
control, twice = {control!r}, queues()
seen = {{}}
for port in ("up0", "down0"):
    seen[port] = [packets(port, c) for c in ([], set(range(64)) - set(control), control)]
print(json.dumps([found, twice, seen]))
"""


@pytest.mark.skipif(uml.missing() is not None, reason=str(uml.missing()))
def test_a_kernel_makes_the_queues_and_sends_control_through_the_first(tmp_path):
    scripts = []
    for rate in (RATES[0], RATES[-1], "400G"):
        render(fabric_of(rate), "linux", tmp_path / rate)
        scripts.append(str(tmp_path / rate / SWITCH / "qos.sh"))
    ports = list(PARSERS["linux"](Files(tmp_path / "400G" / SWITCH)).addresses)
    program = QUEUES.format(ports=ports, scripts=scripts, control=[12, 16, 46])
    found, twice, seen = uml.run(program, tmp_path)
    assert list(found) == scripts
    for qdiscs, filters in found.values():
        lines = qdiscs.splitlines()
        # Eight ports of two queues each; the data queue marks on the four uplinks.
        assert sum(line.startswith("qdisc prio 1:") for line in lines) == 8
        assert sum(line.startswith("qdisc bfifo 10:") for line in lines) == 8
        assert sum(line.startswith("qdisc bfifo 20:") and " dev down" in line for line in lines) == 4
        red = [line for line in lines if line.startswith("qdisc red 20:") and " dev up" in line]
        assert len(red) == 4
        assert all(" ecn" in line for line in red)
        assert [text.count("classid 1:1") for text in filters] == [3, 3]
    assert twice == found[scripts[-1]], "the second run changes something"
    for before, data, control in seen.values():
        assert (data["10:"] - before["10:"], data["20:"] - before["20:"]) == (0, 61)
        assert (control["10:"] - data["10:"], control["20:"] - data["20:"]) == (3, 0)


def test_a_queue_of_a_slow_port_holds_two_frames(tmp_path):
    # At 1 Gb/s the bandwidth-delay product is 1,500 bytes, less than a packet.
    render(fabric_of("2G"), "linux", tmp_path)
    text = (tmp_path / SWITCH / "qos.sh").read_text()
    assert {int(n) for n in re.findall(r"limit (\d+)", text)} == {2 * 9216}


def show(space, *what):
    text = subprocess.run(["ip", "-n", space, "-j", *what], capture_output=True, text=True).stdout
    return json.loads(text)


def entries(space):
    """Routes to uSIDs and addresses of links."""
    routes = {
        (r["dst"], r["dev"], r.get("gateway"), r.get("encap"))
        for r in show(space, "-6", "route")
        if r["dst"].startswith("5f00:")
    }
    addresses = {
        (link["ifname"], a["local"], a["prefixlen"])
        for link in show(space, "-6", "addr")
        for a in link["addr_info"]
        if a["scope"] == "global"
    }
    return routes, addresses


def test_setup_sh_brings_a_switch_up_and_a_second_run_changes_nothing(tmp_path):
    render(fabric_of("400G"), "linux", tmp_path / "out")
    assert verify(tmp_path / "out").ok
    parsed = PARSERS["linux"](Files(tmp_path / "out" / SWITCH))
    with namespace(parsed.addresses) as space:
        seen = []
        for _ in range(2):
            run, _ = run_in(space, tmp_path / "out" / SWITCH / "setup.sh", tmp_path)
            assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
            seen.append(entries(space))
        (routes, addresses) = seen[0]
        assert seen[1] == seen[0]
        own = {(prefix, "sr0", None, "seg6local") for prefix, _ in parsed.own}
        assert routes == own | {(r.prefix, r.interface, r.next_hop, None) for r in parsed.routes}
        given = {(port, *address.split("/")) for port, (address, _) in parsed.addresses.items()}
        assert addresses == {(port, address, int(length)) for port, address, length in given}
        links = {link["ifname"]: link for link in show(space, "link")}
        for port in parsed.addresses:
            assert links[port]["mtu"] == 9216
            assert "UP" in links[port]["flags"]


def test_setup_sh_goes_on_where_a_run_was_interrupted(tmp_path):
    render(fabric_of("400G"), "linux", tmp_path / "out")
    directory = tmp_path / "out" / SWITCH
    parsed = PARSERS["linux"](Files(directory))
    with namespace(parsed.addresses) as space:
        half = tmp_path / "half"
        half.write_text("\n".join((directory / "ip.batch").read_text().splitlines()[:-3]) + "\n")
        subprocess.run(["ip", "-n", space, "-6", "-batch", half], check=True)
        # A route of an earlier plan goes elsewhere.
        wrong, right = parsed.routes[0], parsed.routes[1]
        moved = ["route", "replace", wrong.prefix, "via", right.next_hop, "dev", right.interface]
        subprocess.run(["ip", "-n", space, "-6", *moved], check=True)
        run, _ = run_in(space, directory / "setup.sh", tmp_path)
        assert (run.returncode, run.stderr) == (0, "")
        plain = {(r[0], r[1], r[2]) for r in entries(space)[0] if r[2]}
        assert plain == {(r.prefix, r.interface, r.next_hop) for r in parsed.routes}


def test_the_check_is_real_a_word_that_tc_does_not_accept_fails(tmp_path):
    render(fabric_of("400G"), "linux", tmp_path / "out")
    script = tmp_path / "out" / SWITCH / "qos.sh"
    script.write_text(script.read_text().replace("34359mbit", "200000mbit"))
    with namespace(PARSERS["linux"](Files(script.parent)).addresses) as space:
        run, _ = run_in(space, script, tmp_path)
    assert run.returncode == 1
    assert 'Illegal "bandwidth"' in run.stderr
