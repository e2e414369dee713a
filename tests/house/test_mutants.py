"""The tool that plants faults into Python packages, and its list of accepted survivors."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.helpers import mutants, python_faults
from tests.helpers.repository import ROOT

SOURCE = '''\
def small(value: int | None, limit=3) -> bool:
    """Whether 1 < 2."""
    if value is None:
        raise ValueError("value - 1")
    return value < limit and not limit
'''


def test_each_operator_constant_and_result_is_a_fault_and_no_text_or_annotation_is():
    faults = list(python_faults.faults_of(Path("m.py"), SOURCE))
    assert sorted(fault.name.removeprefix("m.py: small: ") for fault in faults) == [
        "3 -> 4",
        "not limit -> limit",
        "return value < limit and (not limit) -> return None",
        "value < limit -> value <= limit",
        "value < limit and (not limit) -> value < limit or not limit",
        "value is None -> value is not None",
    ]
    assert len({fault.source for fault in faults}) == len(faults)
    assert all("Whether 1 < 2." in fault.source for fault in faults)


def test_each_accepted_survivor_is_still_a_fault_and_has_a_reason():
    accepted = python_faults.accepted()
    names = set()
    for path in {Path(name.split(":")[0]) for name in accepted}:
        text = (ROOT / "python" / path).read_text(encoding="utf-8")
        names |= {fault.name for fault in python_faults.faults_of(path, text)}
    for name, reason in accepted.items():
        assert name in names, f"{name} is no fault any more: remove its line"
        assert len(reason) > 10, name


PACKAGE = """
LIMIT = 3

def shown(value):
    return value + value

def reached_without_a_look(value):
    return value < LIMIT

def counted_down(value):
    while value > 0:
        value = value - 1
    return value

def never_reached(value):
    return value * 2
"""
TESTS = """
from tiny.sums import LIMIT, counted_down, reached_without_a_look, shown

def test_a_sum():
    assert shown(3) == 6
    reached_without_a_look(2)

def test_a_constant():
    assert LIMIT == 3

def test_a_loop():
    assert counted_down(3) == 0

def test_that_fails_without_a_fault():
    assert shown(3) == 7
"""


def test_what_a_test_looks_at_is_noticed_and_what_none_reaches_is_not(tmp_path):
    for name, text in (("tiny/__init__.py", ""), ("tiny/sums.py", PACKAGE), ("tests/test_tiny.py", TESTS)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    # One second for a test is enough here, and a fault makes the loop endless.
    script = (
        "import sys; from tests.helpers import mutants; mutants.PATIENCE = (0, 1); sys.exit(mutants.main())"
    )
    record = tmp_path / "record"
    words = [sys.executable, "-c", script, "tiny", str(tmp_path / "tests"), "--source", str(tmp_path)]
    words += ["--recorded", str(record)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert "3 tests pass without a fault" in run.stdout
    assert set(re.findall(r"not noticed: tiny/sums.py: (.*)", run.stdout)) == {
        "reached_without_a_look: return value < LIMIT -> return None",
        "reached_without_a_look: value < LIMIT -> value <= LIMIT",
        "never_reached: return value * 2 -> return None",
        "never_reached: 2 -> 3",
        "never_reached: value * 2 -> value // 2",
    }
    assert mutants.is_newest(record, [tmp_path])


def test_a_record_is_old_once_a_source_or_a_test_is_newer(tmp_path):
    record, others = tmp_path / "record", [tmp_path / "tiny", tmp_path / "test_tiny.py::test_a_sum"]
    files = [
        tmp_path / "tiny" / "sums.py",
        tmp_path / "tiny" / "data" / "cases.toml",
        tmp_path / "test_tiny.py",
    ]
    assert not mutants.is_newest(record, others)
    for file in (record, *files):
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, (1000, 1000))
    for changed in files:
        os.utime(record, (2000, 2000))
        assert mutants.is_newest(record, others)
        os.utime(changed, (2000, 2000))
        assert not mutants.is_newest(record, others)
        os.utime(changed, (1000, 1000))
    # What is neither is not looked at.
    (tmp_path / "tiny" / "sums.pyc").touch()
    assert mutants.is_newest(record, others)
