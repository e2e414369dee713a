"""The tutorial for C is followed."""

from tests.helpers.pages import walk
from tests.helpers.programs import need_compiler, need_tool
from tests.helpers.repository import ROOT


def test_the_tutorial_works_and_prints_what_it_says(tmp_path):
    need_compiler()
    need_tool("ib_write_bw", "perftest")
    need_tool("ss", "iproute2")
    walk(ROOT / "docs/tutorials/c.md", tmp_path)
