"""Logs of failures: written from a draw, read back, and bad ones refused in a line."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import jobs
from openmrc.errors import ArgumentError, FormatError
from openmrc.jobs import log
from openmrc.jobs.draw import draw
from tests.helpers.commands import run as openmrc
from tests.helpers.repository import ROOT

OFTEN = {"host_days": 100.0, "nic_hours": 5e4, "link_hours": 1e4, "flap_days": 20.0, "switch_hours": 200.0}
"""So often that every kind of part fails within some days."""


def job(**fields):
    return jobs.Job.model_validate({"gpus": 1024, "days": 5, "rates": OFTEN} | fields)


@pytest.mark.parametrize("network", ["mrc", "rocev2-planes", "dual-port", "conventional"])
@pytest.mark.parametrize("seed", range(4))
def test_a_log_that_is_read_back_gives_the_run_that_it_is_from(tmp_path, network, seed):
    described = job(networks=[network], seed=seed)
    assert log.write_log(tmp_path / "log.csv", described) == len(log.read_log(tmp_path / "log.csv"))
    _, drawn = draw(described, described.networks[0], seed)
    _, found = log.read_log(tmp_path / "log.csv").failures(described, described.networks[0])
    for field in log._KINDS:
        before, after = getattr(drawn, field), getattr(found, field)
        assert len(before) > 0
        np.testing.assert_array_equal(after.part, before.part)
        np.testing.assert_allclose(after.begin, before.begin, atol=0.0006)
        np.testing.assert_allclose(after.seconds, before.seconds, atol=0.0006)
    expected = jobs.run(described, described.networks[0], seed)
    outcome = jobs.run(described, described.networks[0], seed, log.read_log(tmp_path / "log.csv"))
    assert outcome.effective == pytest.approx(expected.effective, rel=1e-4)
    np.testing.assert_array_equal(outcome.interruptions, expected.interruptions)


def test_rows_are_in_order_of_time_whatever_order_they_are_read_in(tmp_path):
    described = job(networks=["mrc"])
    log.write_log(tmp_path / "log.csv", described)
    first, *rows = (tmp_path / "log.csv").read_text().splitlines()
    begins = [float(row[4]) for row in csv.reader(rows)]
    assert begins == sorted(begins)
    (tmp_path / "back.csv").write_text("\r\n".join([first, *reversed(rows)]) + "\r\n")
    outcomes = [jobs.run(described, described.networks[0], 1, log.read_log(tmp_path / name)) for name in
                ("log.csv", "back.csv")]  # fmt: skip
    assert outcomes[0].effective == pytest.approx(outcomes[1].effective, rel=1e-9)


def test_what_begins_after_the_job_is_left_out(tmp_path):
    described = job(networks=["mrc"])
    log.write_log(tmp_path / "log.csv", described)
    day = job(networks=["mrc"], days=1)
    _, found = log.read_log(tmp_path / "log.csv").failures(day, day.networks[0])
    assert all((getattr(found, field).begin < 86400).all() for field in log._KINDS)
    assert 0 < len(found.link_flaps) < len(log.read_log(tmp_path / "log.csv").rows["link_flaps"])


HEAD = ",".join(log.COLUMNS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the columns part,number,port,what,begin_s,seconds"),
        ("when,what\n", "line 1: expected the columns"),
        (f"{HEAD}\nhost,1,,repair,0\n", "line 2: 5 cells; expected 6"),
        (f"{HEAD}\n\nhost,x,,repair,0,1\n", "line 3: number: 'x' is no whole number"),
        (f"{HEAD}\nhost,-1,,repair,0,1\n", "line 2: number: '-1'"),
        (f"{HEAD}\nhost,1,,flap,0,1\n", "line 2: there is no host flap; there are host repair, nic repair"),
        (f"{HEAD}\ncable,1,,flap,0,1\n", "line 2: there is no cable flap"),
        (f"{HEAD}\nhost,1,0,repair,0,1\n", "line 2: port: a host has none"),
        (f"{HEAD}\nnic-link,1,,flap,0,1\n", "line 2: port: missing"),
        (f"{HEAD}\nhost,1,,repair,nan,1\n", "line 2: begin_s: 'nan' is no time"),
        (f"{HEAD}\nhost,1,,repair,1764000000,1\n", "after the job's begin"),
        (f"{HEAD}\nhost,1,,repair,0,-1\n", "line 2: seconds: '-1'"),
        (f"{HEAD}\nhost,1,,repair,0,inf\n", "line 2: seconds: 'inf'"),
        (f'{HEAD}\n"host,1', "line 2"),
        (f"{HEAD}\nhost\0,1,,repair,0,1\n", "line 2"),
    ],
)
def test_a_bad_log_is_one_line_with_its_place(tmp_path, text, message):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(FormatError) as error:
        log.read_log(tmp_path / "log.csv")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_log_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(HEAD.encode() + b"\n" + text)
    try:
        found = log.read_log(path)
    except FormatError:
        return
    assert len(found) == sum(1 for row in csv.reader(io.StringIO(text.decode())) if row)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nic-link,0,2,flap,0,1", "line 2: nic-link 0 port 2: dual-port has ports 0 to 1"),
        ("nic-link,1024,0,flap,0,1", "line 2: nic-link 1024 port 0: dual-port has 2,048 parts"),
        ("host,128,,repair,0,1", "line 2: host 128: dual-port has 128 parts"),
    ],
)
def test_a_part_that_the_network_has_not_is_named(tmp_path, row, message):
    (tmp_path / "log.csv").write_text(f"{HEAD}\n{row}\n")
    described = job(networks=["dual-port"])
    with pytest.raises(ArgumentError) as error:
        jobs.study(described, 1, None, log.read_log(tmp_path / "log.csv"))
    assert message in str(error.value)


def test_the_command_writes_a_log_and_runs_it(tmp_path):
    path = tmp_path / "failures.csv"
    size = ("--gpus", "1024", "--days", "3", "--networks", "mrc", "--seeds", "1", "--json")
    drawn = openmrc("job", *size, "--write-failures", path)
    assert drawn.returncode == 0, drawn.stderr
    assert f"wrote {path}: " in drawn.stderr
    again = openmrc("job", *size, "--failures", path)
    assert again.returncode == 0, again.stderr
    assert openmrc("job", *size, "--failures", path, "--what-if").returncode == 2
    assert openmrc("job", "--gpus", "512", "--failures", path).returncode != 0


def test_the_published_log_is_what_the_command_writes(tmp_path):
    path = tmp_path / "failures.csv"
    result = openmrc("job", "--gpus", "1024", "--networks", "mrc", "--seeds", "1", "--write-failures", path)
    assert result.returncode == 0, result.stderr
    assert path.read_text() == (ROOT / "docs" / "data" / "failures-1024.csv").read_text()
