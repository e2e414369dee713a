"""Files of the user: input files are regular and of limited size, results are complete or not there."""

import csv
import os
import re
import resource
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from openmrc import Error, files
from openmrc.fabric import Fabric, plan, report
from openmrc.fabric.catalogue import EXAMPLE
from openmrc.sim import Scenario, sweep
from openmrc.switchconf import cabling, render
from openmrc.wire import write_pcap
from tests.helpers.commands import OPENMRC, command, one_line_error, run
from tests.helpers.repository import ROOT

FABRIC = """\
hosts: 16
nic: {rate: 800G}
planes: 4
switch: {radix: 8}
"""
SCENARIO = """\
topology: {hosts: 8, planes: 2, radix: 8}
traffic: [{kind: permutation, bytes: 100000}]
record: {capture: {links: [h0:p0]}}
"""


# --- reading ------------------------------------------------------------------------------------------------


@pytest.fixture
def pipe(tmp_path):
    """A named pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_only_regular_files_are_read(pipe, tmp_path):
    with pytest.raises(Error, match="pipe is a named pipe; a regular file is expected"):
        files.read_text(pipe)
    with pytest.raises(Error, match="/dev/zero is a character device; a regular file is expected"):
        files.read_text(Path("/dev/zero"))
    with pytest.raises(IsADirectoryError) as caught:
        files.read_text(tmp_path)
    assert caught.value.filename == str(tmp_path)


def test_a_file_is_read_up_to_its_limit(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert files.read_text(file, most=5) == "12345"
    with pytest.raises(Error, match="file is larger than 4 B, the most that is read"):
        files.read_text(file, most=4)
    # Its size is 0.
    assert files.read_text(Path("/proc/self/status")).startswith("Name:")
    with pytest.raises(Error, match="status is larger than 4 B"):
        files.read_text(Path("/proc/self/status"), most=4)
    file.write_bytes(b"ab\xff")
    with pytest.raises(Error, match="file: not UTF-8 text at byte 2"):
        files.read_text(file)


COMMANDS = {
    "fabric": ["plan", "{}"],
    "scenario": ["simulate", "{}"],
    "grid": ["sweep", "{}"],
    "catalogue": ["plan", "with_catalogue.yaml"],
    "port table": ["config", "with_ports.yaml", "--platform", "sonic", "--out", "out"],
    "flows": ["simulate", "with_flows.yaml"],
    "trace": ["simulate", "with_trace.yaml"],
    "cabling": ["verify", "made", "--fabric", "fabric.yaml", "--platform", "frr", "--cabling", "{}"],
    "switch's file": ["verify", "made_pipe"],
}


@pytest.mark.parametrize("what", COMMANDS)
def test_a_pipe_in_place_of_an_input_file_is_one_line_of_error_at_once(pipe, tmp_path, what):
    traffic = "topology: {hosts: 8, planes: 2, radix: 8}\ntraffic: "
    texts = {
        "with_catalogue.yaml": FABRIC.replace("radix: 8", "capacity: 51.2T") + "catalogue: pipe\n",
        "with_ports.yaml": FABRIC.replace("radix: 8", "radix: 8, hwsku: X, port_config: pipe"),
        "with_flows.yaml": f"{traffic}[{{kind: flows, file: pipe}}]\n",
        "with_trace.yaml": f"{traffic}[{{kind: recorded, file: {tmp_path}/job}}]\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for name in ("made", "made_pipe"):
        (tmp_path / "fabric.yaml").write_text(FABRIC)
        render(Fabric.load(tmp_path / "fabric.yaml"), "linux", tmp_path / name)
    for place in ("made_pipe/PLATFORM", "job.0.et"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).unlink(missing_ok=True)
        os.mkfifo(tmp_path / place)
    result = run(*[each.format(pipe) for each in COMMANDS[what]], cwd=tmp_path)
    assert result.returncode, result.stdout
    assert "a regular file is expected" in one_line_error(result)


YAML = {
    "a text that its tag does not allow": ("x: !!bool x\n", "f.yaml:5: x is no bool"),
    "a day that there is not": ("x: 2024-13-45\n", "f.yaml:5: 2024-13-45 is no timestamp"),
    "an alias of what it is in": ("x: &a [*a]\n", "f.yaml:5: it contains itself"),
    "a few aliases for billions of values": (
        "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}' if i else '1'] * 10)}]\n" for i in range(10)),
        "f.yaml: more than 100,000 values",
    ),
    "a list without end": (f"x: [{'1,' * 100_001}]\n", "f.yaml: more than 100,000 values"),
    "a value without end": (f"addressing: {{block: {'f' * 500_000}}}\n", "is not an IPv6 prefix"),
}


@pytest.mark.parametrize("what", YAML)
def test_what_is_wrong_in_a_yaml_file_is_one_short_line(tmp_path, what):
    text, reason = YAML[what]
    (tmp_path / "f.yaml").write_text(FABRIC + text)
    with pytest.raises(Error) as caught:
        Fabric.load(tmp_path / "f.yaml")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_of_thousands_of_unknown_fields_a_handful_is_named(tmp_path):
    (tmp_path / "f.yaml").write_text(FABRIC + "".join(f"k{i}: 1\n" for i in range(8000)))
    with pytest.raises(Error) as caught:
        Fabric.load(tmp_path / "f.yaml")
    assert str(caught.value).count("there is no such field") == 3
    assert str(caught.value).endswith("(and 7,997 more)")
    with pytest.raises(Error) as caught:
        Scenario.model_validate({f"k{i}": 1 for i in range(8000)})
    # Two that it needs are missing, and named.
    assert str(caught.value).endswith("(and 7,999 more)")


def test_an_option_of_a_transport_that_is_no_value_is_an_error_in_one_line(tmp_path):
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    result = run("compare", tmp_path / "scenario.yaml", "--transports", "mrc,rocev2:qps=!!bool x")
    assert "qps: !!bool x is not a value" in one_line_error(result)


# --- writing ------------------------------------------------------------------------------------------------


@pytest.fixture
def limited():
    """No file can become longer than this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def set_limit(count):
        resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))

    yield set_limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_cannot_be_written_leaves_what_was_there_and_names_file_and_sizes(tmp_path, limited):
    file = tmp_path / "file"
    file.write_text("before")
    limited(4000)
    with pytest.raises(OSError, match=r"File too large: 4 kB were written, \S+ .B are free") as caught:
        files.write_text(file, "x" * 5000)
    limited(resource.RLIM_INFINITY)
    assert caught.value.filename == str(file)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupt_leaves_what_was_there(tmp_path):
    file = tmp_path / "file"
    file.write_text("before")
    with suppress(KeyboardInterrupt), files.replacing(file) as out:
        out.write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_keeps_its_permissions_and_a_link_its_target(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("before")
    file.chmod(0o604)
    link.symlink_to("file")
    files.write_text(link, "after")
    assert link.is_symlink()
    assert file.read_text() == "after"
    assert file.stat().st_mode & 0o777 == 0o604
    files.write_text(tmp_path / "new", "")
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o666 & ~mask


def test_what_is_no_file_is_written_directly(tmp_path):
    code = "from openmrc import files; files.write_text('/dev/stdout', 'through')"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"through"


@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_is_filled_completely_or_not_at_all(tmp_path, exists):
    out = tmp_path / "deep" / "out"
    if exists:
        out.mkdir(parents=True)
    with suppress(KeyboardInterrupt), files.new_directory(out) as draft:
        (draft / "half").write_text("")
        raise KeyboardInterrupt
    assert out.exists() == exists
    assert list((tmp_path / "deep").rglob("*")) == [out] * exists
    inode = out.stat().st_ino if exists else None
    with files.new_directory(out) as draft:
        (draft / "inner").mkdir()
        files.write_text(draft / "inner" / "file", "all")
    assert [path.relative_to(out).as_posix() for path in sorted(out.rglob("*"))] == ["inner", "inner/file"]
    assert inode in (None, out.stat().st_ino), "a shell may be in it, or it is a mount"


def test_an_interrupted_config_leaves_nothing_and_the_retry_succeeds(tmp_path):
    (tmp_path / "large.yaml").write_text(
        "hosts: 131072\nnic: {rate: 800G}\nplanes: 8\nswitch: {capacity: 51.2T}\n"
    )
    out = tmp_path / "out"
    with command("config", tmp_path / "large.yaml", "--platform", "linux", "--out", out) as config:
        while not list(tmp_path.glob(".openmrc-draft-*/p0/t0-3")):
            assert config.process.poll() is None
        config.interrupt()
        assert config.wait() == 130
    assert [path.name for path in tmp_path.iterdir()] == ["large.yaml"]
    (tmp_path / "small.yaml").write_text(FABRIC)
    assert run("config", tmp_path / "small.yaml", "--platform", "linux", "--out", out).returncode == 0


WRITERS = {
    "config": ["config", "fabric.yaml", "--platform", "linux", "--out", "out"],
    "picture": ["plan", "fabric.yaml", "--picture", "out.svg"],
    "cabling": ["plan", "fabric.yaml", "--cabling", "out.csv"],
    "report": ["simulate", "scenario.yaml", "--report", "out.html"],
    "parquet": ["simulate", "scenario.yaml", "--parquet", "out"],
    "pictures": ["simulate", "scenario.yaml", "--pictures", "out"],
    "capture": ["simulate", "scenario.yaml", "--capture", "out.pcapng"],
    "comparison": ["compare", "scenario.yaml", "--transports", "mrc,rocev2", "--report", "out.html"],
    "compared picture": ["compare", "scenario.yaml", "--transports", "mrc,rocev2", "--picture", "out.png"],
    "sweep": ["sweep", "grid.yaml", "--points", "out"],
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_leaves_no_file_under_its_name(tmp_path, what):
    (tmp_path / "fabric.yaml").write_text(FABRIC)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "grid.yaml").write_text("base: scenario.yaml\naxes: {seed: [1, 2]}\n")
    before = set(tmp_path.rglob("*"))

    def limit():
        # Python ignores SIGXFSZ: writing is an error.
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))

    result = run(*WRITERS[what], cwd=tmp_path, preexec_fn=limit)
    assert result.returncode == 1, result.stderr
    assert "out" in result.stderr.splitlines()[-1]
    assert "File too large: 300 B were written" in result.stderr.splitlines()[-1]
    left = [path for path in tmp_path.rglob("*") if path not in before and path.is_file()]
    assert left == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount")
def test_a_disk_without_space_is_an_error_that_names_file_and_sizes(tmp_path):
    (tmp_path / "fabric.yaml").write_text(FABRIC)
    script = f"""\
        mount -t tmpfs -o size=64k tmpfs {tmp_path}/disk || exit 77
        "$@" config {tmp_path}/fabric.yaml --platform linux --out {tmp_path}/disk/out
        "$@" config {tmp_path}/fabric.yaml --platform linux --out {tmp_path}/disk
        ls -A {tmp_path}/disk
        """
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", textwrap.dedent(script), "sh", *OPENMRC],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no mounts here")
    first, second = done.stderr.splitlines()
    assert f"error: {tmp_path}/disk/out/p" in first
    assert f"error: {tmp_path}/disk/p" in second
    for line in (first, second):
        assert "No space left on device" in line
        assert "0 B are free" in line
    assert done.stdout == ""


def test_text_of_others_is_no_formula_in_a_spreadsheet(tmp_path):
    formulas = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx")
    cells = [*formulas, "etp1a", "'quoted'", "p0/t0-0:up1", "4-way", "", "3", "x"]
    cable = cabling.Cable(*cells)
    cabling.write(tmp_path / "cables.csv", iter([cable]))
    with (tmp_path / "cables.csv").open(newline="") as file:
        _, raw = csv.reader(file)
    assert raw == [f"'{each}" for each in formulas] + cells[len(formulas) :]
    assert cabling.read(tmp_path / "cables.csv") == [cable]

    text = EXAMPLE.read_text()
    (tmp_path / "catalogue.yaml").write_text(re.sub("{name: ([^,}]+)", r'{name: "=\1"', text))
    (tmp_path / "fabric.yaml").write_text(
        FABRIC.replace("radix: 8", "capacity: 51.2T") + "catalogue: catalogue.yaml\n"
    )
    bill = report.as_csv(plan(Fabric.load(tmp_path / "fabric.yaml")))
    assert "'=" in bill
    for row in csv.reader(bill.splitlines()):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)

    sweep.Sweep([{"network": "=1+1", "gain": -1}], 1, 0).write(tmp_path / "frame.csv")
    with (tmp_path / "frame.csv").open(newline="") as file:
        assert list(csv.reader(file))[1] == ["'=1+1", "-1"]


def test_other_results_are_complete_or_not_there(tmp_path, limited):
    limited(40)
    with pytest.raises(OSError, match="File too large"):
        write_pcap(tmp_path / "packets.pcap", [b"0" * 60])
    with pytest.raises(OSError, match="File too large"):
        sweep.write_point(tmp_path / "point.json", {"x": "y" * 60})
    for ending in ("csv", "parquet"):
        with pytest.raises(OSError, match="File too large"):
            sweep.Sweep([{"x": "y" * 60}], 1, 0).write(tmp_path / f"frame.{ending}")
    limited(resource.RLIM_INFINITY)
    assert list(tmp_path.iterdir()) == []


def test_no_module_writes_a_file_of_its_own_accord():
    # Locks are never filled, and a log is read by people while it grows.
    allowed = {"lab/state.py", "demos/lab/run.py", "demos/lab/frr.py", "files.py"}
    package = ROOT / "python" / "openmrc"
    direct = re.compile(r"\.(write_text|write_bytes)\(|\bopen\(.*\"[wax]b?\"|savefig\(path")
    found = [
        f"{file.relative_to(package)}:{number}"
        for file in sorted(package.rglob("*.py"))
        if file.relative_to(package).as_posix() not in allowed
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if direct.search(line) and "files." not in line
    ]
    assert found == [], "openmrc.files writes completely or not at all"
