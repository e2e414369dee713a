"""torchft's own tests of its process group for gloo, with that for MRC in its place.

The exit code is 1 if one fails or is skipped.

The tests name the errors of gloo and NCCL that they expect. Those of openmrc are added.
"""

import sys
import unittest
from datetime import timedelta

from torchft import process_group_test as own

from openmrc.torch.torchft import ProcessGroupMrc

RANK_LOST = "is lost|closed its communicator|was aborted"
DEADLINE = "did not come within|did not end within"


class WithOurWords:
    """Adds the errors of openmrc where a test expects those of others."""

    def assertRaisesRegex(self, kind, words, *rest, **options):  # noqa: N802 - unittest's
        if "Read error" in words:
            words = f"{words}|{RANK_LOST}|{DEADLINE}"
        elif "Socket Timeout" in words:
            words = f"{words}|{DEADLINE}"
        return super().assertRaisesRegex(kind, words, *rest, **options)  # noqa: PT027


class OneRank(WithOurWords, own.ProcessGroupTest):
    pass


class Ranks(WithOurWords, own.NormalGlooMultiPgTest):
    @classmethod
    def _create_pg(cls, backend):
        return ProcessGroupMrc(timeout=timedelta(seconds=10))

    def test_collective_that_gloo_lacks(self):  # Before those after which a rank has crashed.
        for collective in self.SKIP:
            self._run_parallel(collective)

    def test_collective_with_resiliency_that_gloo_lacks(self):
        for collective in self.SKIP:
            self._run_with_resiliency(collective)


def main():
    own.ProcessGroupGloo = ProcessGroupMrc
    names = ["test_gloo_apis_0_cpu", "test_gloo_timeout", "test_functional_collectives"]
    suite = unittest.TestSuite(OneRank(name) for name in names)
    suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(Ranks))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful() or bool(result.skipped) or result.testsRun < 21)


if __name__ == "__main__":
    main()
