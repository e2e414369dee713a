"""``openmrc lab demo --operate``: real faults, and what a controller names of them."""

import json

from openmrc.cli import main
from openmrc.lab.state import names
from tests.helpers.commands import run
from tests.helpers.labs import needs_root


@needs_root
def test_faults_of_the_demo_are_named_by_a_controller(tmp_path):
    done = run(
        *("lab", "demo", "--operate", "--rate", "5M", "--duration", "100s", "--out", tmp_path),
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "page: http://127.0.0.1:" in done.stderr
    assert "faults named rightly" in done.stdout
    found = json.loads((tmp_path / "lab-operated.json").read_text())
    assert found["writes"] > 0
    assert found["wrong_writes"] == 0
    outcomes = {(each["kind"], each["name"]): each["outcome"] for each in found["faults"]}
    # Probes name the link that loses 1 %, which queue pairs do not condemn for long.
    for failed in (
        ("link", "p0/t0-0:up1--p0/t1-1"),
        ("link", "p1/t0-1:up2--p1/t1-2"),
        ("switch", "p0/t1-3"),
        ("link", "h2:p1--p1/t0-1:down0"),
        ("link", "p1/t0-2:up0--p1/t1-0"),
    ):
        assert outcomes[failed] == "right", found
    assert "demo" not in names()


def test_halves_of_the_demo_and_its_operation_exclude_each_other(capsys):
    assert main(["lab", "demo", "--operate", "--only", "mrc"]) != 0
    assert "exclude each other" in capsys.readouterr().err
