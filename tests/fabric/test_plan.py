"""The planner against the published figures, and what it refuses."""

import csv
import io
import json
from fractions import Fraction

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from openmrc import Error
from openmrc.fabric import Fabric, Specification, plan, report
from openmrc.fabric.catalogue import EXAMPLE, Catalogue
from openmrc.fabric.catalogue import load as load_catalogue
from tests.helpers.repository import ROOT

EXAMPLES = ROOT / "examples" / "fabrics"


def spec(**changes):
    base = {
        "hosts": 131_072,
        "nic": {"rate": "800G"},
        "planes": 8,
        "switch": {"capacity": "51.2T"},
        "tiers": 2,
    }
    return Specification.model_validate({**base, **changes})


@pytest.fixture(scope="module")
def reference():
    return plan(Fabric.load(EXAMPLES / "reference.yaml"))


# --- the published figures ---------------------------------------------------------------------------------


def test_the_reference_fabric_has_6144_switches_of_512_ports(reference):
    design = reference.asked
    assert (design.hosts, design.core.radix, design.port_rate) == (131_072, 512, 100 * 10**9)
    assert [(row.name, row.per_plane) for row in design.switch_rows] == [("T0", 512), ("T1", 256)]
    assert design.switches == 6144


@pytest.mark.parametrize(("planes", "radix", "hosts"), [(8, 512, 131_072), (4, 256, 32_768), (1, 64, 2_048)])
def test_two_tiers_hold_k_times_half_k_hosts(planes, radix, hosts):
    fabric = Fabric(spec(planes=planes, hosts=hosts))
    assert (fabric.radix, fabric.core.most_hosts) == (radix, hosts)
    with pytest.raises(Error, match=f"hosts: {hosts + 1} do not fit: .* hold at most {hosts}"):
        Fabric(spec(planes=planes, hosts=hosts + 1))


def test_it_needs_60_percent_of_the_switches_of_three_tiers(reference):
    three = reference.baseline(3)
    # 3N/k per plane with k = 512 and 8 planes, against 5N/k with k = 64.
    assert reference.compared_with(three).switches == pytest.approx((3 * 8 / 512) / (5 / 64))
    assert reference.compared_with(three).switches == pytest.approx(0.6)
    assert three.design.hosts == 65_536
    assert "at most 65,536" in three.refusal


def test_it_needs_67_percent_of_the_optics_of_three_tiers(reference):
    three = reference.baseline(3)
    assert reference.compared_with(three).optics == pytest.approx(2 / 3)
    # The same in modules: every link has two ends, and here every layer is optical.
    per_host = [design.modules / design.hosts for design in (reference.asked, three.design)]
    assert per_host == [4, 6]


def test_the_longest_path_is_3_switches_not_5_or_7(reference):
    assert reference.asked.longest_path == 3
    assert [reference.baseline(tiers).design.longest_path for tiers in (2, 3, 4)] == [3, 5, 7]


def test_256_hosts_are_under_one_t0_not_32(reference):
    assert reference.asked.hosts_per_t0 == 256
    assert reference.baseline(3).design.hosts_per_t0 == 32


def test_losing_a_t0_t1_link_costs_a_256th_of_the_plane_not_a_32nd(reference):
    assert reference.asked.loss("T0-T1 link").of_plane == 1 / 256
    assert reference.asked.loss("T0-T1 link").of_host == 1 / 256 / 8
    assert reference.baseline(3).design.loss("T0-T1 link").of_plane == 1 / 32


@pytest.mark.parametrize(("planes", "share"), [(8, 0.125), (4, 0.25)])
def test_losing_a_nic_port_costs_one_plane(planes, share):
    design = plan(Fabric(spec(planes=planes, hosts=2048))).asked
    assert design.loss("NIC port").of_host == share
    assert design.loss("T0 switch").of_host == share


def test_only_four_single_plane_tiers_reach_131072_hosts(reference):
    four = reference.baseline(4)
    assert (four.design.hosts, four.refusal) == (131_072, None)
    assert four.design.switches == 7 * 131_072 // 64
    assert reference.baseline(2).design.hosts == 2048


def test_paths_and_latencies_follow_the_longest_path(reference):
    design = reference.asked
    assert (design.paths_near, design.paths_far) == (8, 8 * 256)
    part = load_catalogue(EXAMPLE).switch(51_200 * 10**9)
    # Two more switches, and twice the cable between T0 and T1 at 5 ns/m.
    assert design.latency_far_ns - design.latency_near_ns == pytest.approx(2 * part.latency_ns + 2 * 50 * 5)


# --- parts -------------------------------------------------------------------------------------------------


def test_every_figure_is_its_count_times_its_part(reference):
    catalogue = load_catalogue(EXAMPLE)
    switches = {part.name: part for part in catalogue.switches}
    modules = {part.name: part for part in catalogue.transceivers}
    cables = {part.name: part for part in catalogue.cables}
    for design in [reference.asked, *(b.design for b in reference.baselines)]:
        for row in design.switch_rows:
            part = switches[row.part]
            assert (row.watts, row.price) == (row.count * part.watts, row.count * part.price)
        for link in design.link_rows:
            # In these fabrics both ends have the same module.
            assert link.lower_transceiver == link.upper_transceiver
            module, cable = modules[link.upper_transceiver], cables[link.cable]
            assert link.watts == link.modules * module.watts
            price = link.modules * module.price + link.count * (cable.price + cable.per_metre * link.length)
            assert link.price == pytest.approx(price)
        assert design.watts == pytest.approx(sum(r.watts for r in (*design.switch_rows, *design.link_rows)))


def test_a_catalogue_of_ones_own_changes_every_figure(tmp_path, reference):
    text = (
        EXAMPLE.read_text().replace("watts: 900", "watts: 901").replace("name: example parts", "name: ours")
    )
    (tmp_path / "parts.yaml").write_text(text)
    (tmp_path / "fabric.yaml").write_text(
        (EXAMPLES / "reference.yaml").read_text() + "catalogue: parts.yaml\n"
    )
    mine = plan(Fabric.load(tmp_path / "fabric.yaml"))
    assert mine.catalogue == "ours"
    assert mine.asked.watts - reference.asked.watts == 6144


def test_a_part_the_catalogue_does_not_have_leaves_the_figure_unknown():
    bare = Catalogue(name="bare", currency="EUR", switches=[])
    design = plan(Fabric(spec(hosts=1000), bare)).asked
    assert (design.watts, design.price, design.modules, design.latency_far_ns) == (None, None, None, None)
    assert any("bare has no way to join 100G ports over 3 m" in note for note in design.notes)
    assert any("no switch" in note for note in design.notes)


def test_short_links_are_copper_and_long_ones_are_fibre():
    design = plan(Fabric(spec(hosts=1000, cables={"host_t0": 1, "t0_t1": 30, "t1_t2": 500}))).asked
    host, core = design.link_rows
    assert (host.cable, host.transceiver, host.modules) == ("dac-100g", None, 0)
    assert (core.cable, core.transceiver) == ("mmf", "osfp-800g-sr8")


def test_modules_are_counted_per_host_and_switch_not_by_division():
    # 9 hosts of 8 planes: 9 NIC modules; per plane 9 links into one T0, so 2 modules of 8.
    design = plan(Fabric(spec(hosts=9, tiers=1))).asked
    assert design.link_rows[0].modules == 9 + 8 * 2


def cages_of(design, tier, catalogue):
    """Cages that the links of a switch of this tier take with the modules of the design, counted by hand."""
    modules = {part.name: part for part in catalogue.transceivers}
    served: dict[str, int] = {}
    for layer, end, links in (
        (tier, "upper_transceiver", design.core.downlinks(tier)),
        (tier + 1, "lower_transceiver", design.core.uplinks(tier)),
    ):
        if links:
            name = getattr(design.link_rows[layer], end)
            served[name] = served.get(name, 0) + links
    # One module may serve downlinks and uplinks.
    return sum(-(-links // modules[name].breakout(design.port_rate)) for name, links in served.items())


def test_modules_are_chosen_that_the_cages_have_room_for():
    # 500 downlinks of 100G on 64 cages: the cheapest module serves 4 ports and would need 125 cages.
    fabric = Fabric(spec(hosts=500, nic={"rate": "400G"}, planes="auto", tiers="auto"))
    design = plan(fabric).asked
    assert cages_of(design, 0, fabric.catalogue) == 63
    (host,) = design.link_rows
    assert (host.lower_transceiver, host.upper_transceiver) == ("qsfp-400g-sr4", "osfp-800g-sr8")
    # 500 NICs with a module of 4 ports each, and 4 planes of 63 modules of 8.
    assert host.modules == 500 + 4 * 63


@settings(max_examples=60)
@given(
    hosts=st.integers(2, 3000),
    nic=st.sampled_from(["400G", "800G"]),
    planes=st.sampled_from([1, 2, 4, 8]),
    switch=st.sampled_from(["51.2T", "25.6T", "12.8T"]),
)
def test_no_plan_has_a_switch_with_too_few_cages(hosts, nic, planes, switch):
    specification = spec(
        hosts=hosts, nic={"rate": nic}, planes=planes, tiers="auto", switch={"capacity": switch}
    )
    try:
        fabric = Fabric(specification)
        design = plan(fabric).asked
    except Error:
        return
    if any(row.upper_transceiver is None for row in design.link_rows):
        return
    for tier in range(design.tiers):
        assert cages_of(design, tier, fabric.catalogue) <= fabric.size.switch.cages


def test_a_plan_that_no_module_makes_possible_is_refused():
    text = EXAMPLE.read_text()
    only_four = [line for line in text.splitlines() if "osfp" not in line]
    catalogue = Catalogue.model_validate(yaml.safe_load("\n".join(only_four)))
    fabric = Fabric(spec(hosts=500, nic={"rate": "400G"}, planes=4, tiers="auto"), catalogue)
    with pytest.raises(
        Error, match=r"a T0 of 500 downlinks and 0 uplinks needs at least 125 cages .* has 64"
    ):
        plan(fabric)


def test_modules_at_the_ends_of_a_link_have_lanes_of_one_rate():
    catalogue = load_catalogue(EXAMPLE)
    ways = catalogue.cablings(200 * 10**9, 30, 1600 * 10**9, 1600 * 10**9)
    assert len({way.lower.name for way in ways}) > 2
    assert all(way.lower.lane_rate == way.upper.lane_rate for way in ways)


def test_alternatives_have_no_more_tiers_than_the_hosts_need():
    small = plan(Fabric(spec(hosts=500, nic={"rate": "400G"}, planes=4, tiers="auto")))
    assert [(b.tiers, b.design is not None) for b in small.baselines] == [(2, True), (3, False), (4, False)]
    assert small.baseline(4).refusal == "fewer tiers hold 500 hosts"
    console = Console(width=200, file=io.StringIO())
    console.print(report.tables(small))
    text = console.file.getvalue()
    assert "16,777,216" not in text
    assert "4 tiers" not in text


def test_a_single_plane_fabric_is_not_compared_with_itself():
    single = plan(Fabric(spec(hosts=500, nic={"rate": "400G"}, planes=1, tiers="auto")))
    assert single.asked.tiers == 2
    assert single.baseline(2).refusal == "it is this fabric"
    assert not any(baseline.design for baseline in single.baselines)
    console = Console(width=200, file=io.StringIO())
    console.print(report.tables(single))
    assert "Compared with" not in console.file.getvalue()


def test_an_alternative_of_more_tiers_and_no_more_hosts_is_none():
    # Eight ports of 100 Gb/s are two of 400 Gb/s: two hosts, whatever the tiers.
    lab = plan(Fabric.load(ROOT / "examples" / "fabrics" / "lab.yaml"))
    assert [baseline.refusal for baseline in lab.baselines] == ["fewer tiers hold 2 hosts too"] * 3


def test_a_report_says_where_its_figures_come_from(reference):
    console = Console(width=200, file=io.StringIO())
    console.print(report.tables(reference))
    assert "watts, prices and latencies are assumptions" in console.file.getvalue()
    assert "IEEE 802.3" in report.as_dict(reference)["source"]


# --- the smallest fabric -----------------------------------------------------------------------------------


def test_tiers_left_open_are_as_few_as_hold_the_hosts():
    tiers = [Fabric(spec(tiers="auto", hosts=h)).tiers for h in (512, 513, 131_072, 131_073)]
    assert tiers == [1, 2, 2, 3]


def test_planes_left_open_are_those_with_the_fewest_switches():
    fabric = Fabric(spec(planes="auto", tiers="auto", hosts=131_072))
    others = [Fabric(spec(planes=p, tiers="auto")).switch_count for p in (1, 2, 4, 8)]
    assert fabric.switch_count == min(others)


def test_fewer_hosts_need_fewer_switches_not_empty_ones():
    core = Fabric(spec(hosts=1024)).core
    assert (core.switches_per_tier, core.parallel) == ([4, 2], 128)
    core = Fabric(spec(hosts=1024, parallel_links=1)).core
    assert (core.switches_per_tier, core.parallel) == ([4, 256], 1)


def test_an_uneven_last_rack_is_as_full_as_it_is():
    fabric = Fabric(spec(hosts=1000, hosts_per_t0=36))
    last = list(fabric.switches(0))[fabric.core.switches_per_tier[0] - 1]
    down = [port for port in fabric.ports(last) if not port.is_uplink]
    assert len(down) == 1000 % 36
    assert down[-1].peer == "h999"


def test_oversubscription_takes_uplinks_away():
    design = plan(Fabric(spec(hosts=1000, hosts_per_t0=36, oversubscription="3:1"))).asked
    assert (design.core.uplinks(0), design.core.downlinks(0)) == (12, 36)
    assert design.loss("T0-T1 link").of_plane == 1 / 12


@settings(max_examples=150)
@given(
    hosts=st.integers(2, 5000),
    planes=st.sampled_from([1, 2, 4, 8]),
    tiers=st.sampled_from([None, 2, 3]),
    ratio=st.sampled_from([1, Fraction(3, 2), 2, 3]),
    radix=st.integers(4, 128),
)
def test_what_is_planned_is_connected_and_within_the_ports(hosts, planes, tiers, ratio, radix):
    try:
        fabric = Fabric(
            spec(
                hosts=hosts, planes=planes, tiers=tiers, switch={"radix": radix}, oversubscription=str(ratio)
            )
        )
    except Error as error:
        assert str(error).partition(":")[0] in {"hosts", "radix", "tiers", "hosts_per_t0", "parallel_links"}  # noqa: PT017
        return
    core = fabric.core
    for tier in range(core.tiers):
        assert core.downlinks(tier) + core.uplinks(tier) <= radix
        if core.uplinks(tier):
            assert Fraction(core.downlinks(tier), core.uplinks(tier)) <= ratio
    design = plan(fabric).asked
    assert sum(row.per_plane for row in design.link_rows) == sum(core.links_per_layer)
    assert core.links_per_layer[0] == hosts


# --- refusals ----------------------------------------------------------------------------------------------

WHOLE = "hosts: 16\nnic: {rate: 800G}\nplanes: 8\nswitch: {capacity: 51.2T}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected fields"),
        ("- 1\n", "expected fields"),
        ("hosts: [", ":1: "),
        ("\x00", "not YAML"),
        (WHOLE.replace("16", "0"), ":1: hosts: "),
        (WHOLE.replace("16", "many"), ":1: hosts: "),
        (WHOLE.replace("800G", "800"), ":2: nic.rate: 800 is not a rate; write it like 800G or 51.2T"),
        (WHOLE.replace("800G", "fast"), ":2: nic.rate: 'fast' is not a rate"),
        (WHOLE.replace("8\n", "7\n"), "planes: a 800G NIC does not break out into 7 equal ports"),
        (WHOLE.replace("8\n", "99\n"), ":3: planes: "),
        (WHOLE.replace("{capacity: 51.2T}", "{}"), ":4: switch: one of capacity, model and radix is needed"),
        (
            WHOLE.replace("51.2T", "51.25T"),
            "switch.capacity: a 51.25T switch has no whole number of 100G ports",
        ),
        (
            WHOLE.replace("capacity: 51.2T", "model: nine"),
            "switch.model: example parts has no nine; it has switch-51t2",
        ),
        (WHOLE.replace("8\n", "16\n"), "planes: 16 planes need 50G ports, 1024 of them on a 51.2T switch"),
        (WHOLE + "tires: 2\n", ":5: tires: there is no such field"),
        (WHOLE + "hosts: 17\n", ":5: hosts is given twice"),
        (WHOLE + "oversubscription: 0\n", ":5: oversubscription.0: 0 is out of range"),
        (WHOLE + "oversubscription: 1:0\n", "'1:0' is not a ratio"),
        (WHOLE + "tiers: 2\nt0s_per_pod: 3\n", "t0s_per_pod: a fabric of 2 tiers has no pods"),
        (WHOLE + "tiers: 2\nhosts_per_t0: 512\n", "hosts_per_t0: a T0 would need 1024 ports"),
        (WHOLE + "tiers: 2\n", "one T0 holds all 16 hosts, so no packet would cross the T1s; ask for 1"),
        (WHOLE + "tiers: 3\nhosts_per_t0: 4\n", "tiers: one pod holds all 16 hosts"),
        (
            WHOLE + "addressing: {block: 5f00::/48}\n",
            ":5: addressing.block: 5f00::/48 is a /48; a /32 is needed",
        ),
        (WHOLE + "cables: {t0_t1: -3}\n", ":5: cables.t0_t1: -3 is not a length"),
        (WHOLE + "qos: {dscp: {control: 4}}\n", "control: code point 4 is already used for data"),
        (WHOLE + "qos: {ecn_min: 0.9}\n", "ecn_max: 0.8 must be above ecn_min, 0.9"),
        (WHOLE + "catalogue: nowhere.yaml\n", "nowhere.yaml"),
    ],
)
def test_a_bad_specification_is_refused_in_one_line_naming_field_and_line(tmp_path, text, message):
    file = tmp_path / "fabric.yaml"
    file.write_text(text)
    with pytest.raises((Error, OSError)) as caught:
        Fabric.load(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_bad_catalogue_is_refused_naming_its_line(tmp_path):
    file = tmp_path / "parts.yaml"
    file.write_text(
        "name: x\ncurrency: USD\nswitches:\n  - {name: a, capacity: 1T, cages: 8, cage_rate: 1T}\n"
    )
    with pytest.raises(Error, match=r"parts.yaml:4: switches.0.max_ports: this field is missing"):
        load_catalogue(file)


@settings(max_examples=200)
@given(text=st.text(alphabet="hosts: 16\n[]{}&*!-,'\"#nicrate800G", max_size=60))
def test_no_text_makes_the_reader_fail_otherwise(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("spec") / "fabric.yaml"
    file.write_text(text)
    with pytest.raises(Error):
        Fabric.load(file)


# --- paper -------------------------------------------------------------------------------------------------


def test_json_and_csv_carry_the_same_counts(reference):
    value = json.loads(json.dumps(report.as_dict(reference)))
    rows = list(csv.DictReader(io.StringIO(report.as_csv(reference))))
    mine = [row for row in rows if row["design"].startswith("8 planes")]
    switches = sum(int(row["count"]) for row in mine if row["item"].endswith("switches"))
    assert switches == value["fabric"]["switches"] == 6144
    assert {row["part"] for row in mine} == {"switch-51t2", "osfp-800g-sr8"}
    assert value["single_plane"][1]["this_fabric_per_host_relative"]["switches"] == pytest.approx(0.6)


@pytest.mark.parametrize("name", ["reference", "lab", "pods", "oversubscribed"])
def test_every_example_plans(name):
    design = plan(Fabric.load(EXAMPLES / f"{name}.yaml")).asked
    assert design.switches == sum(row.per_plane for row in design.switch_rows) * design.planes


@pytest.mark.parametrize(("nic", "planes"), [("400G", 1), ("400G", 4), ("800G", 1), ("800G", 4), ("800G", 8)])
def test_the_largest_switches_take_todays_nics(tmp_path, nic, planes):
    file = tmp_path / "largest.yaml"
    shape = f"hosts: 1024\nnic: {{rate: {nic}}}\nplanes: {planes}\ntiers: 2\n"
    file.write_text(f"{shape}switch: {{capacity: 102.4T}}\n")
    fabric = Fabric.load(file)
    assert fabric.radix * fabric.port_rate == 102_400_000_000_000
