"""The options of all commands: one name for each thing, the same values, all of them documented."""

import os
import re
import subprocess
from collections import defaultdict

import pytest

from openmrc.cli import _options
from openmrc.errors import ArgumentError
from openmrc.units import parse_rate, parse_share, parse_size, parse_time
from tests.helpers.commands import OPENMRC, one_line_error, run
from tests.helpers.repository import ROOT

LAB = ROOT / "examples" / "fabrics" / "lab.yaml"
SAME_MEANING = {"--out", "--only", "--lab", "--hosts", "--planes"}
"""They take a directory or a file, a row or a half, a name or nothing, a number or names, one or several
numbers: the same thing, other values."""


def test_the_table_in_the_documentation_is_current():
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == _options.renewed(page), "run `make docs`"


def test_an_option_has_the_same_short_name_and_takes_the_same_in_every_command():
    seen = defaultdict(set)
    for option in _options.options():
        value = option.value.partition(".")[0] if option.value.startswith("FILE") else option.value
        seen[option.name].add((option.names, "" if option.name in SAME_MEANING else value))
    assert {name: variants for name, variants in seen.items() if len(variants) > 1} == {}


def test_a_letter_means_the_same_in_every_command():
    letters = defaultdict(set)
    for option in _options.options():
        for name in option.names:
            if not name.startswith("--"):
                letters[name].add(option.name)
    assert {letter: names for letter, names in letters.items() if len(names) > 1} == {}


def test_every_option_says_what_it_takes_and_means():
    for option in _options.options():
        assert option.help.endswith((".", ")")), option
        assert "<" not in option.value, option


def test_json_is_a_flag_and_results_go_to_out():
    for option in _options.options():
        if option.name == "--json":
            assert option.value == ""
        assert option.name not in ("--output", "--ports", "--draw")


@pytest.mark.parametrize("command", ["", "lab", *(name for name, _ in _options.commands())])
def test_help_at_80_columns_cuts_nothing(command):
    result = subprocess.run(
        [*OPENMRC, *command.split(), "-h"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if len(line) > 80 or "…" in line] == []
    for word in ("<bool>", "<int", "<str>", "<path>", "<list", "<float"):
        assert word not in result.stdout


@pytest.mark.parametrize(
    ("text", "count"),
    [("65536", 65536), ("64K", 65536), ("64KiB", 65536), ("64kB", 64000), ("1MB", 10**6), ("2GiB", 2 << 30)],
)
def test_sizes_count_as_gnu_tools_do(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "0.3", "1e3", "64Q", "K", "1 2"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ArgumentError):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("5s", 5), ("100ms", 0.1), ("20us", 2e-5), ("2min", 120), ("1h", 3600)]
)
def test_times_are_seconds_unless_they_have_a_unit(text, seconds):
    assert parse_time(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "bits"), [("800G", 800e9), ("51.2T", 51.2e12), ("40 Mb/s", 40e6), ("9k", 9e3)]
)
def test_rates_are_powers_of_1000(text, bits):
    assert parse_rate(text) == bits


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("0", 0), ("100%", 1), ("0.5 %", 0.005)]
)
def test_a_share_has_a_sign_or_is_less_than_1(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["1", "1.0", "5", "100", "101%", "-1%", "nan", "much"])
def test_a_share_is_never_guessed(text):
    with pytest.raises(ArgumentError):
        parse_share(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lab", "degrade", "x", "--loss", "1"], "write 1% for percent, 100% for all"),
        (["simulate", "--interval", "10"], "a time with a unit"),
        (["lab", "soft", "p0/t0-0", "--base-rtt", "1000"], "a time with a unit"),
        (["simulate", "--size", "1.5"], "not a whole number of bytes"),
        (["demo", "--size", "many"], "not a size"),
        (["lab", "demo", "--rate", "40"], "not a rate"),
        (["demo", "--ports", "4"], "No such option: --ports"),
        (["write-bw", "--loopback", "-a", "-s", "5"], "not both"),
        (["write-bw", "--loopback", "--cpu", "99999"], "processor 99999"),
        (["write-lat", "--srv6", "::1"], "--srv6 needs --fabric"),
        (["put", "/etc/hostname", "127.0.0.1:x"], "not a port number"),
        (["put", "/etc/hostname", "127.0.0.1", "--impair", "love=1%"], "KIND"),
        (["serve", "/tmp", "--bind", "0.0.0.0"], "name a token"),
        (["decode"], "give a capture file, or --hex"),
        (["plan", LAB, "--json", "--csv"], "exclude each other"),
        (["plan", LAB, "--hosts", "1000000"], "do not fit"),
        (["path", "h0", "h99", "--fabric", LAB], "h99 does not exist"),
        (["config", LAB, "--platform", "junos", "-o", "x"], "not one of"),
        (["compare", "x.yaml", "--picture", "a.foo"], "has to end in .png"),
        (["sweep", "x.yaml", "-o", "a.foo"], "has to end in .parquet or .csv"),
        (["reproduce", "--only", "Z9"], "Z9"),
        (["run", "--planes", "4", "--fail-port", "9@1", "--", "true"], "this device has ports 0 to 3"),
        (["run", "--planes", "4", "--impair", "loss=1%,ports=12", "--", "true"], "has ports 0 to 3"),
        (["run", "--addresses", "lo", "--fail-port", "1@0", "--", "true"], "has only port 0"),
        (["run", "--planes", "999", "--", "true"], "planes must be 1 to 16, not 999"),
        (["run", "--planes", "0", "--", "true"], "planes must be 1 to 16, not 0"),
        (["run", "--planes", "4", "--evs", "0", "--", "true"], "must be 1 to 2048, not 0"),
        (["run", "--planes", "4", "--ev-burst", "-5", "--", "true"], "must be 1 to 255, not -5"),
        (["demo", "--ev-burst", "0"], "must be 1 to 255, not 0"),
        (["simulate", "--snaplen", "64"], "--snaplen goes with --capture"),
        (["simulate", "--capture-link", "h0:p0"], "--capture-link goes with --capture"),
        (["sweep", "x.yaml", "-j", "-2"], "greater than or equal to -1"),
        (["lab", "soft", "p0/t0-0", "--json"], "--json goes with --off"),
        (["bench-collective", "all_reduce", "-a", "-e", "64K"], "leave --minbytes and --maxbytes out"),
        (["bench-collective", "all_reduce", "--ranks", "256", "--minbytes", "8G"], "are there"),
    ],
)
def test_values_that_are_not_clear_are_wrong_usage(arguments, says):
    result = run(*arguments)
    assert result.returncode == 2
    assert says in one_line_error(result)


def test_underscores_in_names_of_options_are_dashes_as_perftest_writes_them():
    result = run("write-bw", "--loopback", "--post_list", "4", "--report_gbits", "-n", "8", "-D", "1")
    assert "not both" in one_line_error(result)  # Both options were read.


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ("hosts: 500\nnic: {rate: 400G}\nplanes: 8\nswitch: {capacity: 25.6T}\n", "256 at most"),
        ("hosts: 4000\nnic: {rate: 400G}\nplanes: 1\nswitch: {radix: 4}\ntiers: 2\n", "do not fit"),
        ("hosts: 500\nnic: {rate: 400G}\n", "planes: this field is missing; switch: this field is missing"),
    ],
)
def test_a_file_in_which_no_fabric_fits_is_a_failure_and_no_wrong_usage(contents, says, tmp_path):
    file = tmp_path / "fabric.yaml"
    file.write_text(contents)
    result = run("plan", file)
    assert result.returncode == 1
    assert says in one_line_error(result)
    assert "more)" not in result.stderr


def test_a_package_that_is_missing_is_a_failure_and_nothing_is_started(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('hidden for the test')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in (["bench-collective", "all_reduce"], ["tune", "-o", tmp_path / "tuning.json"]):
        result = run(*command, env=environment)
        assert result.returncode == 1
        assert "pip install numpy" in one_line_error(result)


def test_what_looks_like_markup_in_a_name_is_printed_as_it_is(tmp_path):
    directory = tmp_path / "run[bold]1"
    result = run("example", "flows-from-file", "-o", directory)
    assert result.returncode == 0, result.stderr
    assert f"wrote {directory}/flows-from-file.yaml" in result.stdout


def commands_in(page):
    """Commands in a page's code, as lists of words up to what belongs to the shell or to another program."""
    blocks = re.findall(r"```.*?```|`[^`\n]+`|^(?: {4}|\t).*$", page, flags=re.MULTILINE | re.DOTALL)
    for line in "\n".join(blocks).splitlines():
        for found in re.findall(r"\bopenmrc ([a-z][^`]*)", line):
            yield re.split(r" (?:--(?= )|[#&|>]|  )|\)|$", found, maxsplit=1)[0].split()


def test_the_documents_name_no_option_that_a_command_does_not_have():
    names = {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        for name, command in _options.commands()
    }
    wrong, seen = [], 0
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for words in commands_in(file.read_text(encoding="utf-8")):
            name = next((n for n in (" ".join(words[:2]), words[0]) if n in names), None)
            if name is None:
                continue
            seen += 1
            given = [re.match(r"\[?(--?[A-Za-z][\w-]*)", word) for word in words]
            options = {match[1].replace("_", "-") for match in given if match}
            wrong += [(file.name, name, option) for option in options - names[name] - {"-h", "--help"}]
    assert seen > 50
    assert wrong == []
