"""Tables on terminals of any width: nothing is cut, nothing is longer than the line."""

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from openmrc.tables import Table
from tests.helpers.repository import ROOT

FABRICS = ("lab", "reference", "oversubscribed", "pods")
CELL = st.text("abc0123456789,.", min_size=1, max_size=20)


def shown(table, width):
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return out.getvalue()


@settings(max_examples=50)
@given(
    st.integers(40, 200),
    st.lists(st.tuples(CELL, CELL, CELL, CELL, CELL, CELL), min_size=1, max_size=12),
    st.integers(0, 6),
)
def test_every_cell_is_there_whole_at_any_width(width, rows, left):
    columns = ["transport", "delivered", "median", "99 %", "last", "goodput per host"]
    text = shown(Table(columns, rows, left=left, totals=1), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in [*columns, *(cell for row in rows for cell in row)]:
        assert word in text


def test_a_table_that_fits_is_one_block():
    text = shown(Table(["name", "a", "b"], [["x", "1", "2"], ["sum", "1", "2"]], totals=1), 40)
    assert [line.split() for line in text.splitlines() if line.strip()][2:] == [
        ["x", "1", "2"],
        ["sum", "1", "2"],
    ]


def test_a_table_without_names_turns_into_blocks_with_all_columns():
    rows = [["1", "x" * 20, "3" * 8], ["2", "y" * 20, "4" * 8]]
    text = shown(Table(["seed", "goodput", "resent"], rows, left=0), 30)
    assert [line.split() for line in text.splitlines()] == [
        ["seed", "1"],
        ["goodput", "x" * 20],
        ["resent", "3" * 8],
        [],
        ["seed", "2"],
        ["goodput", "y" * 20],
        ["resent", "4" * 8],
    ]


def test_a_cell_wider_than_the_terminal_is_folded_and_whole():
    text = shown(Table(["name", "value"], [["n", "0123456789" * 5]]), 30)
    assert max(map(len, text.splitlines())) <= 30
    assert text.count("9") == 5


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["plan", f"examples/fabrics/{name}.yaml"]
            for name in ("lab", "reference", "oversubscribed", "pods")
        ),
        ["path", "h0", "h9", "--fabric", "examples/fabrics/reference.yaml"],
        ["path", "h0", "h40", "--fabric", "examples/fabrics/pods.yaml", "--ev", "0"],
        ["simulate", "--hosts", "16", "--planes", "2", "--radix", "8"],
        ["compare", "examples/scenarios/incast-rocev2.yaml"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_no_command_prints_a_line_longer_than_80_columns(arguments):
    code = (
        "import sys; from openmrc.cli import _common, main\n"
        "from rich.console import Console\n"
        "_common.console = lambda stderr=False: Console(stderr=stderr, width=80, emoji=False)\n"
        "sys.exit(main())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if len(line) > 80 or "…" in line] == []


PROSE = "An incast of seven senders with three message sizes, three transports and two seeds."


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_sentences_in_the_last_column_are_folded_and_whole(width):
    text = shown(Table(["example", "kind", "shows"], [["incast", "grid", PROSE]], left=3, prose=True), width)
    assert max(map(len, text.splitlines())) <= width
    assert text.splitlines()[0].split() == ["example", "kind", "shows"]
    rest = " ".join(text.split("incast", 1)[1].split()).removeprefix("grid ")
    assert rest == PROSE


def test_where_there_is_no_room_for_sentences_the_table_is_turned():
    row = ["three-tiers-oversubscribed", "scenario", PROSE]
    text = shown(Table(["example", "kind", "shows"], [row], left=3, prose=True), 40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.splitlines()[0].split() == ["example", "three-tiers-oversubscribed"]
