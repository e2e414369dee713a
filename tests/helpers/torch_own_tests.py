"""Runs tests of torch's own for its backends (torch.testing._internal.distributed) against the backend mrc.

    BACKEND=gloo WORLD_SIZE=3 TEMP_DIR=/tmp/x python tests/helpers/torch_own_tests.py REPORT [NAME...]

They ask for the backend when they are imported, and leave most out for a backend that they do not know. So
they are imported as those of gloo, and run with mrc. The report has a line of JSON for each test.
"""

import contextlib
import json
import os
import sys
import unittest
from pathlib import Path

import torch
from torch.testing._internal.distributed import distributed_test as own

TORCH_BACKEND = os.environ.get("OPENMRC_OWN_TESTS_BACKEND", "mrc")


right = own.dist.init_process_group


def init_process_group(*args, backend=None, **options):
    """Of the backend that is tested."""
    return right(*args, backend=TORCH_BACKEND, **options)


class OwnTests(own.TestDistBackend, own.DistributedTest._DistTestBase):
    """The tests, each in processes that are forked: importing torch once is enough."""

    def setUp(self):
        super().setUp()
        own.dist.init_process_group = init_process_group
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


class Report(unittest.TestResult):
    def __init__(self, file):
        super().__init__()
        self._file = file

    def _say(self, test, outcome, why=""):
        line = {"name": test._testMethodName, "outcome": outcome, "why": why}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def addSuccess(self, test):  # noqa: N802 - unittest's
        self._say(test, "passed")

    def addSkip(self, test, reason):  # noqa: N802
        self._say(test, "skipped", reason)

    def addError(self, test, error):  # noqa: N802
        self._say(test, "failed", self._exc_info_to_string(error, test)[-1500:])

    addFailure = addError  # noqa: N815


def main():
    path, *names = sys.argv[1:]
    torch.set_num_threads(1)
    names = names or unittest.defaultTestLoader.getTestCaseNames(OwnTests)
    with Path(path).open("w", encoding="utf-8") as file, contextlib.suppress(KeyboardInterrupt):
        unittest.TestSuite(map(OwnTests, names)).run(Report(file))


if __name__ == "__main__":
    main()
