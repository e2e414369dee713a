"""The layout of the files, their permissions, and the copy of the specification beside them."""

import json
import stat

import pytest
import yaml

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import FILES, render, render_switch
from openmrc.switchconf.facts import Facts
from openmrc.switchconf.render import render_common, resolved, switch_directory

BASE = {"hosts": 4, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 4}, "tiers": 2}


def fabric_of(**changes):
    return Fabric(Specification.model_validate({**BASE, **changes}))


def texts_of(platform, switch, **changes):
    fabric = fabric_of(switch={"radix": 4, **switch}, **changes)
    facts = Facts(fabric, platform)
    found = dict(render_common(fabric, platform))
    for each in fabric.switches():
        found |= {f"{each}/{name}": text for name, text in render_switch(facts.of(each), platform)}
    return found


@pytest.mark.parametrize("platform", FILES)
@pytest.mark.parametrize("asic", [None, "tomahawk5"])
def test_every_file_ends_with_one_line_end_and_has_no_spaces_at_the_end_of_lines(platform, asic):
    for text in texts_of(platform, {"asic": asic}).values():
        assert text == text.rstrip() + "\n"
        assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("asic", [None, "tomahawk5"])
def test_json_is_indented_by_two_for_each_table_and_entry(asic):
    for text in texts_of("sonic", {"asic": asic}).values():
        depth = 0
        for line in text.splitlines() if text.startswith("{") else ():
            inner = line.strip()
            assert inner
            # A line that closes what others have opened is as far to the left as the one that opened it.
            closed = inner.startswith(("}", "]"))
            assert len(line) - len(inner) == 2 * (depth - closed), line
            depth += sum(line.count(mark) for mark in "{[") - sum(line.count(mark) for mark in "}]")


@pytest.mark.parametrize("platform", FILES)
def test_scripts_can_be_run_and_nothing_else(platform, tmp_path):
    assert render(fabric_of(), platform, tmp_path) == fabric_of().switch_count
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    scripts = [path for path in files if path.read_text().startswith("#!")]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o755 for path in scripts)
    assert not any(path.stat().st_mode & 0o111 for path in files if path not in scripts)
    assert {path.name for path in scripts} == {
        "linux": {"setup.sh", "qos.sh"},
        "frr": {"setup.sh", "qos.sh"},
        "sonic": {"load.sh"},
    }.get(platform, set())


def test_no_file_waits_for_the_disk(tmp_path, monkeypatch):
    # There are thousands of them, and the directory gets its name when all are written.
    monkeypatch.setattr("os.fsync", lambda _: pytest.fail("a file waits for the disk"))
    (tmp_path / "ports").write_text("".join(f"Ethernet{n} {n} port{n} 1 200000\n" for n in range(4)))
    spec = tmp_path / "fabric.yaml"
    spec.write_text(
        "hosts: 4\nnic: {rate: 400G}\nplanes: 2\ntiers: 1\nswitch: {radix: 4, port_config: ports}\n"
    )
    assert render(Fabric.load(spec), "sonic", tmp_path / "out") == 2
    assert (tmp_path / "out" / "port_config.ini").read_text() == (tmp_path / "ports").read_text()


def test_progress_is_told_after_each_switch(tmp_path):
    told = []
    render(fabric_of(), "eos", tmp_path, progress=lambda *numbers: told.append(numbers))
    count = fabric_of().switch_count
    assert told == [(n, count) for n in range(1, count + 1)]
    names = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("startup-config")}
    assert names == {str(switch) for switch in fabric_of().switches()}
    assert switch_directory(tmp_path, fabric_of().switch("p1/t0-1")) == tmp_path / "p1" / "t0-1"


def test_an_unknown_system_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(Error, match="platform: junos is not one of linux, frr, sonic, eos, cumulus"):
        render(fabric_of(), "junos", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_cumulus_breaks_out_the_cages_in_use_in_the_order_of_their_numbers():
    fabric = fabric_of(hosts=21, tiers=1, switch={"radix": 24, "cages": 12})
    ((_, text),) = render_switch(Facts(fabric, "cumulus").of(fabric.switch("p0/t0-0")), "cumulus")
    assert f"nv set interface {','.join(f'swp{n}' for n in range(1, 12))} link breakout 2x\n" in text


@pytest.mark.parametrize(
    ("changes", "switch", "others"),
    [
        ({}, {"radix": 4}, set()),
        ({"switch": {"radix": 4, "cages": 2}}, {"radix": 4, "cages": 2}, set()),
        (
            {"switch": {"capacity": "51.2T", "device": "SN5600"}, "tiers": 1},
            {"radix": 256, "cages": 64, "device": "SN5600"},
            set(),
        ),
        (
            {"switch": {"radix": 4, "hwsku": "Mine", "asic": "tomahawk5", "port_config": "tables/mine"}},
            {"radix": 4, "hwsku": "Mine", "asic": "tomahawk5", "port_config": "port_config.ini"},
            set(),
        ),
        ({"hosts_per_t0": 2, "parallel_links": 1}, {"radix": 4}, {"hosts_per_t0", "parallel_links"}),
    ],
)
def test_the_copied_specification_has_what_decides_the_fabric_in_the_order_of_the_form(
    changes, switch, others
):
    text = resolved(fabric_of(name="mine", **changes))
    assert text.startswith("# mine: the specification of the configurations in this directory.\nname: mine\n")
    copied = yaml.safe_load(text)
    assert copied["switch"] == switch
    usual = ["name", "hosts", "nic", "planes", "switch", "tiers", "oversubscription"]
    last = ["cables", "addressing", "qos", "mtu"]
    assert [name for name in copied if name not in others] == usual + last
    assert others <= set(copied) - set(usual + last)
    again = Fabric(Specification.model_validate(copied))
    assert json.dumps(yaml.safe_load(resolved(again))["qos"]) == json.dumps(copied["qos"])
