"""The reference fabric at its full size: 6,144 switches, every entry."""

import pytest

from openmrc.fabric import Fabric
from openmrc.switchconf import FILES, render, verify, with_switch
from tests.helpers.repository import ROOT

DEVICES = {"sonic": "SN5640", "eos": "7060X6-64PE-B", "cumulus": "SN5640"}
EXAMPLES = ROOT / "examples" / "fabrics"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("platform", list(FILES))
def test_every_entry_of_6144_switches_is_right(platform, tmp_path):
    fabric = with_switch(Fabric.load(EXAMPLES / "reference.yaml"), device=DEVICES.get(platform))
    out = tmp_path / "out"
    assert render(fabric, platform, out) == 6144
    result = verify(out)
    assert [str(problem) for problem in result.problems] == []
    assert (result.switches, result.entries, result.paths) == (6144, 6144 * 513, None)
    # The check is real: it finds one wrong next hop among three million.
    switch = fabric.switch("p6/t0-300")
    one, other = fabric.ports(switch)[300], fabric.ports(switch)[301]
    for file in (out / str(switch)).iterdir():
        text = file.read_text()
        spoiled = text.replace(one.peer_address, "\0").replace(other.peer_address, one.peer_address)
        file.write_text(spoiled.replace("\0", other.peer_address))
    assert {problem.switch for problem in verify(out).problems} == {"p6/t0-300"}
