"""The files for FRR, loaded by FRR 10.3 of Debian 13, which programs this machine's kernel.

FRR is not installed: ``.ci/frr`` unpacks it into a directory, and the tests run it there by chroot.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import render, render_switch, verify, verify_foreign
from openmrc.switchconf.facts import Facts
from openmrc.switchconf.parse import PARSERS, Files
from tests.helpers.repository import ROOT
from tests.helpers.switches import namespace, run_in

FRR = Path(os.environ.get("OPENMRC_FRR", ROOT / ".make" / "frr"))

pytestmark = [
    pytest.mark.skipif(not (FRR / "complete").exists(), reason=f"no FRR 10.3 here: run .ci/frr {FRR}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a network namespace and chroot"),
]

DAEMONS = ("mgmtd", "zebra", "staticd")


def release():
    """The release of the unpacked FRR: (10, 3)."""
    words = ["chroot", str(FRR), "/usr/lib/frr/zebra", "--version"]
    shown = subprocess.run(words, capture_output=True, text=True).stdout
    found = re.match(r"zebra version (\d+)\.(\d+)", shown)
    return (int(found[1]), int(found[2])) if found else (0, 0)


SEVERAL = (10, 5)
"""From this release on, FRR installs several uN SIDs."""
SWITCH = "p0/t0-1"


def fabric_of(**changes):
    base = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    return Fabric(Specification.model_validate({**base, "parallel_links": 1, **changes}))


class Router:
    """FRR in a network namespace, with directories of its own for configuration and sockets."""

    def __init__(self, space, holder):
        self.space, self.holder = space, holder

    def frr(self, *command):
        """Runs a program of FRR; its exit code and output."""
        words = ["nsenter", f"--target={self.holder.pid}", "--mount", "--net", "chroot", str(FRR), *command]
        # Not a pipe: a daemon keeps its end of it open.
        with tempfile.TemporaryFile("w+") as output:
            run = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, timeout=60)
            output.seek(0)
            return run.returncode, output.read()

    def load(self, text, daemons=None):
        """Starts FRR with this file and the options of a file ``daemons``; the lines that vtysh refuses."""
        self.write("vtysh.conf", "")
        self.write("frr.conf", text)
        for daemon in DAEMONS:
            options = shell(f'. "$1"; echo ${daemon}_options', daemons).split() if daemons else []
            code, output = self.frr(f"/usr/lib/frr/{daemon}", "-d", "-u", "root", "-g", "root", *options)
            assert code == 0, output
        for _ in range(50):
            if all((self.inside("run/frr") / f"{daemon}.vty").exists() for daemon in DAEMONS):
                break
            time.sleep(0.1)
        for _ in range(10):
            _, output = self.frr("/usr/bin/vtysh", "-b")
            if "locked by another session" not in output:
                break
            time.sleep(1)  # mgmtd reads its own files first.
        # mgmtd of later releases says so that it had nothing to commit.
        return [line for line in output.splitlines() if "%" in line and "applied with notes" not in line]

    def inside(self, path):
        """A path of the router's file system."""
        return Path(f"/proc/{self.holder.pid}/root") / (FRR / path).relative_to("/")

    def write(self, name, text):
        (self.inside("etc/frr") / name).write_text(text)

    def listeners(self):
        """Addresses of the TCP ports that somebody listens at."""
        words = ["ip", "netns", "exec", self.space, "ss", "-Hltn"]
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        return {line.split()[3].rpartition(":")[0] for line in shown.splitlines()}

    def routes(self):
        """The kernel's routes to uSIDs."""
        text = subprocess.run(
            ["ip", "-n", self.space, "-j", "-6", "route"], capture_output=True, text=True
        ).stdout
        return [route for route in json.loads(text) if route["dst"].startswith("5f00:")]

    def wait_for(self, count):
        """The routes, once there are this many, or those that there are after ten seconds."""
        for _ in range(100):
            if len(routes := self.routes()) >= count:
                break
            time.sleep(0.1)
        return routes


def shell(script, *arguments):
    """The output of a script of bash, in which FRR's own are written."""
    words = ["bash", "-c", script, "bash", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@contextmanager
def router(space):
    """FRR's file system in a network namespace; its daemons end with it."""
    mounts = "; ".join(
        [f"mount -t tmpfs tmpfs {FRR / each}" for each in ("run", "etc/frr", "var/lib/frr", "var/tmp")]
        + [f"mount --bind /dev {FRR / 'dev'}", f"mount -t proc proc {FRR / 'proc'}", "echo ready"]
    )
    for name in ("var/lib/frr", "var/tmp"):
        (FRR / name).mkdir(parents=True, exist_ok=True)
    words = ["ip", "netns", "exec", space, "unshare", "--mount", "--propagation=private"]
    holder = subprocess.Popen(
        [*words, "sh", "-ec", f"{mounts}; exec sleep 600"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "ready\n"
        (Path(f"/proc/{holder.pid}/root") / (FRR / "run/frr").relative_to("/")).mkdir()
        yield Router(space, holder)
    finally:
        listed = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True).stdout
        for pid in map(int, listed.split()):
            os.kill(pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()


def prepare(space, directory, tmp_path):
    """Runs setup.sh with this FRR."""
    return run_in(space, directory / "setup.sh", tmp_path, ZEBRA=f"chroot {FRR} /usr/lib/frr/zebra")[0]


@pytest.mark.parametrize("switch", ["p0/t0-1", "p1/t1-2"])
def test_frr_brings_up_every_entry_of_a_switch(switch, tmp_path):
    render(fabric_of(), "frr", tmp_path / "out")
    directory = tmp_path / "out" / switch
    parsed = PARSERS["frr"](Files(directory))
    assert parsed.complaints == []
    with namespace(parsed.addresses) as space, router(space) as frr:
        for _ in range(2):  # The second run changes nothing.
            run = prepare(space, directory, tmp_path)
            assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        assert frr.load((directory / "frr.conf").read_text(), directory / "daemons") == []
        assert frr.listeners() == {"127.0.0.1"}
        routes = frr.wait_for(len(parsed.own) + len(parsed.routes))
        shifting = {(r["dst"], r["encap"], r["action"], r["dev"]) for r in routes if "encap" in r}
        assert shifting == {(prefix, "seg6local", "End", "sr0") for prefix, _ in parsed.own}
        (end,) = (r for r in routes if "encap" in r)
        assert (end["flavors"], end["lblen"], end["nflen"]) == (["next-csid"], 32, 16)
        plain = {(r["dst"], r["gateway"], r["dev"]) for r in routes if "gateway" in r}
        assert plain == {(route.prefix, route.next_hop, route.interface) for route in parsed.routes}
        links = json.loads(
            subprocess.run(["ip", "-n", space, "-j", "addr"], capture_output=True, text=True).stdout
        )
        for link in (each for each in links if each["ifname"] in parsed.addresses):
            assert link["mtu"] == 9216
            assert "UP" in link["flags"]
            given = {f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"] if a["scope"] == "global"}
            assert given == {parsed.addresses[link["ifname"]][0]}


def test_the_running_configuration_of_frr_is_verified_as_a_foreign_one(tmp_path):
    fabric = fabric_of()
    render(fabric, "frr", tmp_path / "out")
    directory, theirs = tmp_path / "out" / SWITCH, tmp_path / "theirs"
    parsed = PARSERS["frr"](Files(directory))
    with namespace(parsed.addresses) as space, router(space) as frr:
        assert prepare(space, directory, tmp_path).returncode == 0
        assert frr.load((directory / "frr.conf").read_text(), directory / "daemons") == []
        frr.wait_for(len(parsed.own) + len(parsed.routes))
        _, running = frr.frr("/usr/bin/vtysh", "-c", "show running-config")
    theirs.mkdir()
    for switch in fabric.switches():
        text = (tmp_path / "out" / str(switch) / "frr.conf").read_text()
        (theirs / f"{str(switch).replace('/', '-')}.cfg").write_text(
            running if str(switch) == SWITCH else text
        )
    result = verify_foreign(theirs, fabric, "frr")
    assert [str(problem) for problem in result.problems] == []
    # The same with another node length, which the lines for formats must not hide.
    file = theirs / "p0-t0-1.cfg"
    file.write_text(running.replace("node-len 16", "node-len 24") + " formats\n  format usid-f3216\n")
    problems = [problem.text for problem in verify_foreign(theirs, fabric, "frr").problems]
    assert problems == ["locator own0, 5f00:0:2::/48: not of 32-bit block and 16-bit node"]


def test_frrs_own_start_script_starts_what_daemons_names(tmp_path):
    render(fabric_of(), "frr", tmp_path / "out")
    directory = tmp_path / "out" / SWITCH
    program = (FRR / "usr/lib/frr/frrcommon.sh").read_text()
    places = {
        'D_PATH="/usr/lib/frr"': f'D_PATH="{FRR}/usr/lib/frr"',
        'C_PATH="/etc/frr': f'C_PATH="{directory}',
    }
    for old, new in places.items():
        assert old in program
        program = program.replace(old, new)
    (tmp_path / "frrcommon.sh").write_text(program)
    # Without frr.conf it would make empty files of its own; users and owners are Debian's matter.
    script = 'chown() { :; }; log_failure_msg() { echo "$@"; }; . "$1"; daemon_list on off; echo "$on"'
    assert sorted(shell(script, tmp_path / "frrcommon.sh").split()) == sorted(DAEMONS)


def test_without_frr_the_script_says_so(tmp_path):
    render(fabric_of(), "frr", tmp_path / "out")
    with namespace([]) as space:
        run, _ = run_in(space, tmp_path / "out" / SWITCH / "setup.sh", tmp_path, ZEBRA="/nowhere/zebra")
    assert run.returncode == 1
    assert run.stderr.startswith("setup.sh: `/nowhere/zebra --version` says no release of FRR")


@pytest.mark.parametrize(
    ("old", "new"),
    [("behavior usid", "behavior micro"), ("behavior uN", "behavior End.uN"), ("ipv6 route", "ipv6 rowte")],
)
def test_the_check_is_real_a_wrong_line_is_refused(old, new, tmp_path):
    render(fabric_of(), "frr", tmp_path / "out")
    text = (tmp_path / "out" / SWITCH / "frr.conf").read_text()
    assert old in text
    with namespace([]) as space, router(space) as frr:
        assert any(new in line for line in frr.load(text.replace(old, new, 1)))


def test_parallel_links_need_frr_10_5_and_older_ones_are_refused(tmp_path):
    if release() >= SEVERAL:
        pytest.skip("this FRR installs several uN SIDs")
    render(fabric_of(parallel_links=2), "frr", tmp_path / "out")
    assert verify(tmp_path / "out").ok
    directory = tmp_path / "out" / SWITCH
    parsed = PARSERS["frr"](Files(directory))
    assert len(parsed.own) == 2
    with namespace(parsed.addresses) as space:
        run = prepare(space, directory, tmp_path)
        assert run.returncode == 1
        assert run.stderr == "setup.sh: FRR 10.3 is too old for this switch; it needs 10.5 or later\n"
        # Refused for a reason: FRR 10.3 takes the file and installs one of the two.
        subprocess.run(["ip", "-n", space, "link", "add", "sr0", "type", "ifb"], check=True)
        for link in (*parsed.addresses, "sr0"):
            subprocess.run(["ip", "-n", space, "link", "set", link, "up"], check=True)
        with router(space) as frr:
            assert frr.load((directory / "frr.conf").read_text()) == []
            frr.wait_for(1 + len(parsed.routes))
            time.sleep(1)
            assert len([r for r in frr.routes() if "encap" in r]) == 1


def test_a_later_frr_installs_every_usid_of_parallel_links(tmp_path):
    if release() < SEVERAL:
        pytest.skip("needs FRR 10.5 or later: OPENMRC_FRR names a directory with it")
    render(fabric_of(parallel_links=2), "frr", tmp_path / "out")
    directory = tmp_path / "out" / SWITCH
    parsed = PARSERS["frr"](Files(directory))
    assert len(parsed.own) == 2
    with namespace(parsed.addresses) as space, router(space) as frr:
        run = prepare(space, directory, tmp_path)
        assert (run.returncode, run.stderr) == (0, "")
        assert frr.load((directory / "frr.conf").read_text(), directory / "daemons") == []
        routes = frr.wait_for(len(parsed.own) + len(parsed.routes))
        assert {r["dst"] for r in routes if "encap" in r} == {prefix for prefix, _ in parsed.own}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_frr_brings_up_513_entries_of_a_t0_of_the_reference_fabric(tmp_path):
    examples = ROOT / "examples" / "fabrics"
    fabric = Fabric.load(examples / "reference.yaml", hosts=131072)
    for name, text in render_switch(Facts(fabric, "frr").of(fabric.switch("p3/t0-17")), "frr"):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    parsed = PARSERS["frr"](Files(tmp_path))
    with namespace(parsed.addresses) as space, router(space) as frr:
        assert prepare(space, tmp_path, tmp_path).returncode == 0
        assert frr.load((tmp_path / "frr.conf").read_text()) == []
        deadline = time.monotonic() + 120
        while len(frr.routes()) < 513 and time.monotonic() < deadline:
            time.sleep(1)
        assert len(frr.routes()) == 513
