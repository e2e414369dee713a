"""The test suite of rdma-core, as Debian ships it with pyverbs, over our device."""

import gzip
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.commands import OPENMRC
from tests.helpers.programs import PATIENCE

SUITE = Path("/usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"
RUNNER = """
import json, sys, unittest

class Outcomes(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.found = {}
    def addSuccess(self, test):
        self.found[test.id()] = ("passed", "")
    def addSkip(self, test, reason):
        self.found[test.id()] = ("skipped", reason)
    def addError(self, test, error):
        self.found[test.id()] = ("failed", str(error[1]))
    addFailure = addError

directory, target = sys.argv[1:]
sys.path[:0] = [directory, directory + "/tests"]
sys.argv[1:] = ["--dev", "mrc0"]
import args_parser
args_parser.parser.parse_args()
outcomes = Outcomes()
import tests
unittest.defaultTestLoader.loadTestsFromModule(tests).run(outcomes)
json.dump(outcomes.found, open(target, "w"))
"""
PASS = {
    "test_cq.CQAPITest.test_create_cq",
    "test_cq.CQAPITest.test_create_cq_bad_flow",
    "test_cq.CQAPITest.test_create_cq_with_comp_channel",
    "test_cqex.CQEXAPITest.test_create_cq_ex",
    "test_cqex.CQEXAPITest.test_create_cq_ex_bad_flow",
    "test_device.DeviceTest.test_dev_list",
    "test_device.DeviceTest.test_open_dev",
    "test_device.DeviceTest.test_phys_port_cnt_ex",
    "test_device.DeviceTest.test_query_device",
    "test_device.DeviceTest.test_query_device_ex",
    "test_device.DeviceTest.test_query_gid",
    "test_device.DeviceTest.test_query_gid_ex",
    "test_device.DeviceTest.test_query_gid_table",
    "test_device.DeviceTest.test_query_gid_table_bad_flow",
    "test_device.DeviceTest.test_query_pkey",
    "test_device.DeviceTest.test_query_port",
    "test_fork.ForkAPITest.test_is_fork_initialized",
    "test_mr.MRTest.test_reg_mr_bad_flags",
    "test_pd.PDTest.test_alloc_pd",
    "test_pd.PDTest.test_dealloc_pd",
    "test_pd.PDTest.test_destroy_pd_twice",
    "test_pd.PDTest.test_multiple_pd_creation",
    "test_qp.QPTest.test_create_rc_qp_ex_no_attr",
    "test_qp.QPTest.test_create_rc_qp_ex_with_attr",
    "test_qp.QPTest.test_create_rc_qp_no_attr",
    "test_qp.QPTest.test_create_rc_qp_with_attr",
    "test_qp.QPTest.test_query_rc_qp",
    "test_qpex.QpExTestCase.test_qp_ex_rc_rdma_write",
    "test_qpex.QpExTestCase.test_qp_ex_rc_rdma_write_imm",
    "test_qpex.QpExTestCase.test_qp_ex_rc_rdma_write_zero_length",
}
"""Tests that need nothing but writes, queries, events and extended completion queues."""

SENDS = {
    "test_cq_events.CqEventsTestCase.test_cq_events_rc",
    "test_cqex.CqExTestCase.test_rc_traffic_cq_ex",
    "test_mr.MRTest.test_mr_rereg_pd",
    "test_relaxed_ordering.RoTestCase.test_ro_rc_traffic",
}
"""Tests of other things whose traffic is SEND, which MRC does not have."""
EITHER = "test_device.DeviceTest.test_query_port_bad_flow"
"""It asks for a port above `phys_port_cnt`, drawn at random; ours answers for a port of each plane."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    if not SUITE.is_dir() or not Path(PYTHON).exists():
        pytest.skip("no test suite of rdma-core: package python3-pyverbs")
    probe = subprocess.run([PYTHON, "-c", "import pyverbs.device"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{PYTHON} has no pyverbs: package python3-pyverbs")
    directory = tmp_path_factory.mktemp("rdma-core")
    (directory / "tests").mkdir()
    for each in SUITE.iterdir():
        if each.suffix == ".gz":
            (directory / "tests" / each.stem).write_bytes(gzip.decompress(each.read_bytes()))
        else:
            shutil.copy(each, directory / "tests")
    found = directory / "outcomes.json"
    done = subprocess.run(
        [*OPENMRC, "run", "--planes", "4", "--", PYTHON, "-c", RUNNER, str(directory), str(found)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name.removeprefix("tests."): outcome for name, outcome in json.loads(found.read_text()).items()}


def test_what_mrc_has_passes_the_suite_of_rdma_core(outcomes):
    passed = {name for name, (outcome, _) in outcomes.items() if outcome == "passed"}
    assert passed >= PASS


def test_only_tests_that_send_fail_and_their_sends_are_refused(outcomes):
    failed = {name: reason for name, (outcome, reason) in outcomes.items() if outcome == "failed"}
    assert "Successfully queried non-existing port" in failed.pop(
        EITHER, "Successfully queried non-existing port"
    )
    assert set(failed) == SENDS
    assert set(failed.values()) == {"Failed to post send. Errno: 95, Operation not supported"}


def test_a_device_is_not_imported_and_the_suite_skips_it(outcomes):
    imported = outcomes["test_shared_pd.SharedPDTestCase.test_imported_rc_ex_rdma_write"]
    assert imported == ["skipped", "Importing a device is not supported"]
