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
from switch_helpers import namespace, run_in

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("tc"), reason="needs root and iproute2 for network namespaces"
)

SWITCH = "p0/t0-1"


def fabric_of(rate, **changes):
    base = {"hosts": 16, "nic": {"rate": rate}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    return Fabric(Specification.model_validate({**base, **changes}))


# From a port of 10 Mb/s to one of 1.6 Tb/s: the thresholds and the rate of red scale with the rate.
@pytest.mark.parametrize("rate", ["20M", "2G", "100G", "400G", "800G", "3.2T"])
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


def test_a_queue_of_a_slow_port_holds_two_frames(tmp_path):
    # At 1 Gb/s the bandwidth-delay product is 1,500 bytes, less than a packet.
    render(fabric_of("2G"), "linux", tmp_path)
    text = (tmp_path / SWITCH / "qos.sh").read_text()
    assert {int(n) for n in re.findall(r"limit (\d+)", text)} == {2 * 9216}


def test_setup_sh_brings_a_switch_up(tmp_path):
    render(fabric_of("400G"), "linux", tmp_path / "out")
    assert verify(tmp_path / "out").ok
    parsed = PARSERS["linux"](Files(tmp_path / "out" / SWITCH))
    with namespace(parsed.addresses) as space:
        run, _ = run_in(space, tmp_path / "out" / SWITCH / "setup.sh", tmp_path)
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")

        def show(*what):
            text = subprocess.run(["ip", "-n", space, "-j", *what], capture_output=True, text=True).stdout
            return json.loads(text)

        routes = {route["dst"] for route in show("-6", "route") if route["dst"].startswith("5f00:")}
        assert routes == {p for p, _ in parsed.own} | {route.prefix for route in parsed.routes}
        links = {link["ifname"]: link for link in show("link")}
        for port in parsed.addresses:
            assert links[port]["mtu"] == 9216
            assert "UP" in links[port]["flags"]


def test_the_check_is_real_a_word_that_tc_does_not_accept_fails(tmp_path):
    render(fabric_of("400G"), "linux", tmp_path / "out")
    script = tmp_path / "out" / SWITCH / "qos.sh"
    script.write_text(script.read_text().replace("34359mbit", "200000mbit"))
    with namespace(PARSERS["linux"](Files(script.parent)).addresses) as space:
        run, _ = run_in(space, script, tmp_path)
    assert run.returncode == 1
    assert 'Illegal "bandwidth"' in run.stderr
