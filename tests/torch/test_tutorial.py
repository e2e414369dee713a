"""The tutorial for PyTorch is followed. `make test-torch` has torch."""

import pytest

from tests.helpers.pages import walk
from tests.helpers.repository import ROOT

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")


def test_the_tutorial_works_and_prints_what_it_says(tmp_path):
    walk(ROOT / "docs/tutorials/pytorch.md", tmp_path)
