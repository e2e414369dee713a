"""Rendered configurations: always the same, correct in every entry, and accepted by their systems."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import FILES, render, render_switch, verify
from openmrc.switchconf.facts import Facts
from openmrc.switchconf.parse import PARSERS, Files
from openmrc.switchconf.parse.model import Where
from openmrc.switchconf.render import resolved
from tests.helpers.repository import ROOT

EXAMPLES = ROOT / "examples" / "fabrics"
PLATFORMS = list(FILES)


def fabric_of(**changes):
    base = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    return Fabric(Specification.model_validate({**base, **changes}))


def test_queues_of_linux_are_shares_of_the_bandwidth_delay_product():
    # 200 Gb/s for 12 us are 300,000 bytes: ECN, trimming and control as the specification's defaults say.
    fabric = fabric_of()
    qos = fabric.spec.qos
    bdp = 300_000
    for switch in ("p0/t0-0", "p0/t1-0"):
        texts = dict(render_switch(Facts(fabric, "linux").of(fabric.switch(switch)), "linux"))
        bands = re.findall(r"parent 1:1 handle 10: bfifo limit (\d+)$", texts["qos.sh"], re.M)
        assert bands == [str(bdp)], "control has room for a whole product"
        data = re.findall(r"red limit (\d+) min (\d+) max (\d+) .* probability 1 ecn$", texts["qos.sh"], re.M)
        expected = (4 * round(qos.trim * bdp), round(qos.ecn_min * bdp), round(qos.ecn_max * bdp))
        assert data == [tuple(map(str, expected))]
        last_hop = re.findall(r"parent 1:2 handle 20: bfifo limit (\d+)$", texts["qos.sh"], re.M)
        assert last_hop == [str(round(qos.trim_last_hop * bdp))]


FABRICS = {
    "two tiers": fabric_of(),
    "one link to each T1": fabric_of(parallel_links=1),
    "uneven racks": fabric_of(hosts=17, hosts_per_t0=3, oversubscription=1.5),
    "three tiers": fabric_of(hosts=50, tiers=3),
    "one tier": fabric_of(hosts=5, tiers=1),
    "another block": fabric_of(addressing={"block": "2001:db8::/32", "links": "fd00:1::/32"}),
    "broken out": fabric_of(switch={"radix": 8, "cages": 2}),
    "other code points": fabric_of(qos={"dscp": {"control": 48, "data": 10}, "ecn_min": 0.3}),
}


@pytest.fixture(scope="module", params=PLATFORMS)
def platform(request):
    return request.param


@pytest.fixture(scope="module")
def lab(platform, tmp_path_factory):
    out = tmp_path_factory.mktemp("config") / platform
    render(fabric_of(), platform, out)
    return out


def files_of(out):
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", FABRICS)
def test_every_path_of_a_rendered_fabric_arrives_and_every_entry_is_used(platform, name, tmp_path):
    fabric = FABRICS[name]
    assert render(fabric, platform, tmp_path) == fabric.switch_count
    result = verify(tmp_path)
    assert [str(problem) for problem in result.problems] == []
    assert result.switches == fabric.switch_count
    tables = [fabric.table(switch) for switch in fabric.switches()]
    assert result.entries == sum(len(table.own) + len(table.routes) for table in tables)
    assert result.paths == sum(
        len(fabric.paths(src, dst))
        for first in range(0, fabric.hosts, fabric.core.hosts_per_t0)
        for dst in range(fabric.hosts)
        if (src := first if first != dst else first + 1) < min(first + fabric.core.hosts_per_t0, fabric.hosts)
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    platform=st.sampled_from(PLATFORMS),
    hosts=st.integers(2, 60),
    planes=st.sampled_from([1, 2, 4]),
    tiers=st.sampled_from([None, 2, 3]),
    radix=st.integers(4, 14),
    ratio=st.sampled_from(["1", "2", "3:2"]),
    rack=st.none() | st.integers(1, 6),
    parallel=st.none() | st.integers(1, 3),
)
def test_any_small_fabric_is_rendered_as_it_is_proved(
    platform, hosts, planes, tiers, radix, ratio, rack, parallel
):
    try:
        fabric = fabric_of(
            hosts=hosts,
            planes=planes,
            tiers=tiers,
            switch={"radix": radix},
            oversubscription=ratio,
            hosts_per_t0=rack,
            parallel_links=parallel,
        )
        fabric.core.check_addresses()
    except ValueError:
        assume(False)
    with tempfile.TemporaryDirectory() as out:
        render(fabric, platform, out)
        assert [str(problem) for problem in verify(out, walk=True).problems] == []
        again = Fabric.load(Path(out) / "fabric.yaml")
    assert [again.table(switch) for switch in again.switches()] == [
        fabric.table(s) for s in fabric.switches()
    ]


def test_the_same_specification_gives_the_same_bytes(platform, lab, tmp_path):
    render(fabric_of(), platform, tmp_path)
    assert files_of(tmp_path) == files_of(lab)


def test_the_copy_of_the_specification_gives_the_same_fabric_without_its_catalogue(tmp_path):
    fabric = Fabric.load(EXAMPLES / "oversubscribed.yaml")
    render(fabric, "eos", tmp_path / "out")
    again = Fabric.load(tmp_path / "out" / "fabric.yaml")
    assert again.spec.catalogue is None
    assert (again.core.switches_per_tier, again.core.parallel) == (
        fabric.core.switches_per_tier,
        fabric.core.parallel,
    )
    render(again, "eos", tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "out")


def test_the_copy_of_the_specification_gives_the_rate_in_the_largest_whole_unit():
    for rate, written in {
        10**7: "10M",
        2 * 10**8: "200M",
        25 * 10**8: "2500M",
        25 * 10**9: "25G",
        4 * 10**11: "400G",
    }.items():
        fabric = fabric_of(nic={"rate": rate}, planes=1)
        copied = yaml.safe_load(resolved(fabric))
        assert copied["nic"] == {"rate": written}
        assert Specification.model_validate(copied).nic.rate == rate


def test_the_place_of_a_text_is_its_line(tmp_path):
    path = tmp_path / "file"
    for before, lines in {"": [1, 2, 3, 0], "\n": [2, 3, 4, 0]}.items():
        path.write_text(before + "one\ntwo\nthree and two\n")
        found = [Where("file", text).line(path) for text in ("one", "two", "three", "four")]
        assert found == lines
    assert Where("file", 7).line(path) == 7


def test_ecn_is_on_everywhere_but_towards_hosts(platform, lab):
    for switch in fabric_of().switches():
        parsed = PARSERS[platform](Files(lab / str(switch)))
        assert parsed.complaints == []
        assert len(parsed.marking) == (4 if switch.tier == 0 else 8)
        # 200 Gb/s for 12 us is 300 kB: marking from 0.2 to 0.8 of it.
        assert parsed.thresholds == {(60_000, 240_000)}
        assert parsed.strict_codes == {12, 16, 46}


def test_no_file_runs_a_routing_protocol_or_pfc(lab):
    for path, content in files_of(lab).items():
        text = content.decode().lower()
        if path.name == "daemons":
            assert re.findall(r"^(\w+)=yes$", text, re.M) == ["zebra", "staticd", "vtysh_enable"]
            continue
        assert not re.search(r"router (bgp|ospf|isis)|bgp_neighbor|priority-flow-control on|pfc_enable", text)


def test_switches_that_trim_are_told_what_to_write(tmp_path):
    render(fabric_of(), "sonic", tmp_path)
    db = json.loads((tmp_path / "p0" / "t0-0" / "config_db.json").read_text())
    assert db["SWITCH_TRIMMING"]["GLOBAL"] == {
        "size": "256",
        "dscp_value": "from-tc",
        "tc_value": "5",
        "queue_index": "6",
    }
    last_hop, uplink = db["PORT_QOS_MAP"]["Ethernet0"], db["PORT_QOS_MAP"]["Ethernet32"]
    assert db["TC_TO_DSCP_MAP"][last_hop["tc_to_dscp_map"]]["5"] == "16"
    assert db["TC_TO_DSCP_MAP"][uplink["tc_to_dscp_map"]]["5"] == "12"
    # Packets that arrive trimmed are not treated as trimmed by this switch, but have the same priority.
    assert db["DSCP_TO_TC_MAP"]["FABRIC"]["12"] == "3"
    assert db["TC_TO_QUEUE_MAP"]["FABRIC"]["3"] == "6"
    assert db["BUFFER_PROFILE"][db["BUFFER_QUEUE"]["Ethernet0|1"]["profile"]]["static_th"] == "450000"


def test_ports_are_named_after_the_cages_they_are_broken_out_of(tmp_path):
    fabric = Fabric.load(EXAMPLES / "oversubscribed.yaml")  # 256 ports out of 64 cages
    expected = {
        "linux": {"down0", "down35", "up11"},
        "sonic": {"Ethernet0", "Ethernet2", "Ethernet94"},
        "eos": {"Ethernet1/1", "Ethernet1/3", "Ethernet12/7"},
        "cumulus": {"swp1s0", "swp1s1", "swp12s3"},
    }
    for platform, names in expected.items():
        out = tmp_path / platform
        out.mkdir()
        switch = next(fabric.switches())
        for name, text in render_switch(Facts(fabric, platform).of(switch), platform):
            (out / name).write_text(text)
        parsed = PARSERS[platform](Files(out))
        assert names <= parsed.addresses.keys()
        assert len(parsed.addresses) == 48


# --- refusals ----------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(lab, platform):
    with pytest.raises(Error, match="is not empty"):
        render(fabric_of(), platform, lab)


def test_an_unknown_platform_is_refused(tmp_path):
    with pytest.raises(Error, match="platform: junos is not one of linux, frr, sonic, eos, cumulus"):
        render(fabric_of(), "junos", tmp_path / "out")


def test_a_fabric_that_cannot_be_addressed_is_refused(tmp_path):
    with pytest.raises(Error, match="at most 3 tiers"):
        render(fabric_of(hosts=200, tiers=4), "linux", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_is_no_configuration_is_refused(tmp_path):
    with pytest.raises(Error, match="no file PLATFORM"):
        verify(tmp_path)
    with pytest.raises(Error, match="is not a directory"):
        verify(tmp_path / "nowhere")
    (tmp_path / "PLATFORM").write_text("junos\n")
    with pytest.raises(Error, match="junos is not one of"):
        verify(tmp_path)


# --- other judges ------------------------------------------------------------------------------------------


def _kernel_can_shift():
    """Whether network namespaces and seg6local with NEXT-CSID can be used here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    space = f"openmrc-{uuid.uuid4().hex[:8]}"
    commands = (
        f"netns add {space}",
        f"-n {space} link add x type veth peer name y",
        f"-n {space} link set x up",
        f"-n {space} -6 route add 5f00:0:1::/48 encap seg6local action End "
        "flavors next-csid lblen 32 nflen 16 dev x",
    )
    works = all(subprocess.run(["ip", *c.split()], capture_output=True).returncode == 0 for c in commands)
    subprocess.run(["ip", "netns", "del", space], capture_output=True)
    return works


@pytest.mark.parametrize("switch", ["p0/t0-1", "p1/t1-0"])
def test_a_linux_kernel_takes_the_entries_as_they_are_written(tmp_path, switch):
    if not _kernel_can_shift():
        pytest.skip("needs root, iproute2 and a kernel with seg6local NEXT-CSID")
    fabric = fabric_of()
    render(fabric, "linux", tmp_path)
    parsed = PARSERS["linux"](Files(tmp_path / switch))
    space = f"openmrc-{uuid.uuid4().hex[:8]}"

    def ip(*arguments):
        return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout

    ip("netns", "add", space)
    try:
        for port in parsed.addresses:
            ip("-n", space, "link", "add", port, "type", "ifb")
        ip("-n", space, "-6", "-batch", str(tmp_path / switch / "ip.batch"))
        subprocess.run(
            ["ip", "netns", "exec", space, "sysctl", "-q", "-p", str(tmp_path / switch / "sysctl.conf")],
            check=True,
        )
        routes = [
            r
            for r in json.loads(ip("-n", space, "-j", "-6", "route", "show"))
            if r["dst"].startswith("5f00:")
        ]
    finally:
        ip("netns", "del", space)
    shifting = {route["dst"] for route in routes if route.get("encap") == "seg6local"}
    assert shifting == {prefix for prefix, _ in parsed.own}
    plain = {(r["dst"], r["gateway"], r["dev"]) for r in routes if "gateway" in r}
    assert plain == {(route.prefix, route.next_hop, route.interface) for route in parsed.routes}


def test_a_real_frr_understands_everything_but_the_static_sids_it_is_too_old_for(tmp_path):
    """FRR 8.4 (Debian 12) has no static SIDs and no lengths of locators; it must accept the rest."""
    vtysh = shutil.which("vtysh")
    if vtysh is None:
        pytest.skip("no FRR here: vtysh not found")
    render(fabric_of(), "frr", tmp_path)
    file = tmp_path / "p0" / "t0-1" / "frr.conf"
    run = subprocess.run([vtysh, "-C", "-f", str(file)], capture_output=True, text=True, timeout=60)
    refused = re.findall(r"line (\d+): % Unknown command\[\d+\]: *(.*)", run.stdout + run.stderr)
    lines = file.read_text().splitlines()
    begin = lines.index("segment-routing") + 1
    # The lines that it refuses are in the SRv6 stanza, at the end of the file; it cannot know them.
    assert all(int(number) > begin for number, _ in refused)
    assert {re.sub(r"[0-9a-f:]*:[0-9a-f:]*/48|own\d+", "*", text).strip() for _, text in refused} <= {
        "prefix * block-len 32 node-len 16 func-bits 16",
        "behavior usid",
        "static-sids",
        "sid * locator * behavior uN",
    }
    # The check is real: a malformed route is refused.
    file.write_text(file.read_text().replace("ipv6 route", "ipv6 rowte", 1))
    run = subprocess.run([vtysh, "-C", "-f", str(file)], capture_output=True, text=True, timeout=60)
    assert "ipv6 rowte" in run.stdout + run.stderr


def test_a_real_frr_brings_up_the_addresses_and_routes_of_its_files(tmp_path):
    """Zebra and staticd, configured by vtysh, program the kernel; they skip what they are too old for."""
    vtysh, daemons = shutil.which("vtysh"), Path("/usr/lib/frr")
    if vtysh is None or not (daemons / "staticd").exists():
        pytest.skip("no FRR here: vtysh and /usr/lib/frr/staticd not found")
    if os.geteuid() != 0:
        pytest.skip("needs root for a network namespace")
    render(fabric_of(), "frr", tmp_path / "out")
    file = tmp_path / "out" / "p0" / "t0-1" / "frr.conf"
    parsed = PARSERS["frr"](Files(file.parent))
    # FRR drops its privileges and needs a directory that it can write for its sockets.
    run = Path(tempfile.mkdtemp(prefix="openmrc-frr-"))
    (run / "empty.conf").touch()
    for path in (run, run / "empty.conf"):
        shutil.chown(path, "frr", "frr")
    space = f"openmrc-{uuid.uuid4().hex[:8]}"
    started = []

    def inside(*command, check=True):
        words = ["ip", "netns", "exec", space, *command]
        return subprocess.run(words, check=check, capture_output=True, text=True, timeout=60).stdout

    def static_routes():
        routes = json.loads(inside("ip", "-j", "-6", "route", "show"))
        return {(r["dst"], r["gateway"], r["dev"]) for r in routes if r["dst"].startswith("5f00:")}

    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        for port in parsed.addresses:
            inside("ip", "link", "add", port, "type", "ifb")
            inside("ip", "link", "set", port, "up")
        for daemon in ("zebra", "staticd"):
            pid = run / f"{daemon}.pid"
            options = ["-d", "-u", "frr", "-g", "frr", "-P", "0", "-f", run / "empty.conf", "-i", pid]
            inside(str(daemons / daemon), *map(str, options), "-z", f"{run}/zapi", "--vty_socket", str(run))
            started.append(pid)
        expected = {(route.prefix, route.next_hop, route.interface) for route in parsed.routes}
        # staticd drops its configuration until zebra has contacted it: repeat it until it is accepted.
        for _ in range(30):
            if static_routes() == expected:
                break
            inside(vtysh, "--vty_socket", str(run), "-f", str(file), check=False)
            time.sleep(0.5)
        assert static_routes() == expected
        links = json.loads(inside("ip", "-j", "-6", "addr", "show"))
        every = [(link["ifname"], a) for link in links for a in link["addr_info"]]
        addresses = {(name, f"{a['local']}/{a['prefixlen']}") for name, a in every if a["scope"] == "global"}
        assert addresses == {(name, address) for name, (address, _) in parsed.addresses.items()}
    finally:
        for pid in started:
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGTERM)
        subprocess.run(["ip", "netns", "del", space], check=True)
        shutil.rmtree(run)
