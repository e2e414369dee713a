"""``openmrc bench-collective``: its table, its ranks, its comparison and its picture."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from openmrc.cli import main
from openmrc.collectives import Communicator, bench
from openmrc.collectives.bench.picture import draw, size_text
from openmrc.collectives.rendezvous import local_ranks
from openmrc.collectives.tune import Measured
from openmrc.collectives.tuning import Entry
from openmrc.errors import ArgumentError
from tests.helpers.commands import OPENMRC
from tests.helpers.labs import needs_root

SMALL = ("--minbytes", "4KiB", "--maxbytes", "64KiB", "-f", "16", "-n", "3", "-w", "1")


def start(*arguments, **environment):
    return subprocess.Popen(
        [*OPENMRC, "bench-collective", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments, **environment):
    with start(*arguments, **environment) as process:
        try:
            out, err = process.communicate(timeout=100)
        finally:
            # It ends its ranks and its lab.
            process.send_signal(signal.SIGINT)
    return process.returncode, out, err


def line(size, busbw, gloo=None):
    def timing(rate):
        return bench.Timing(size / rate * 1e6, 1.0, rate, rate, 0)

    theirs = None if gloo is None else timing(gloo)
    return bench.Line(
        size, size // 4, "float32", "sum", "ring", timing(busbw), timing(2 * busbw), theirs, True
    )


@pytest.mark.parametrize("operation", bench.OPERATIONS)
def test_every_operation_is_measured_and_its_results_are_right(operation):
    code, out, err = run(operation, "--ranks", "3", *SMALL, "--json")
    assert code == 0, err
    lines = json.loads(out)
    assert [each["size"] for each in lines] == [4092, 65532]
    for each in lines:
        ways = [each["out_of_place"], each["in_place"]]
        assert (ways[1] is None) == (operation == "all_to_all")
        assert all(way["wrong"] == 0 and way["busbw"] > 0 for way in ways if way)
        assert each["network_bytes"] == 0


def test_on_loopback_everything_goes_over_the_planes():
    code, out, err = run("all_reduce", "--ranks", "2", "--loopback", *SMALL, "--json")
    assert code == 0, err
    assert all(each["network_bytes"] > each["size"] for each in json.loads(out))


def test_the_table_reads_like_that_of_nccl_tests():
    code, out, err = run("all_reduce", *SMALL)
    assert code == 0, err
    about, ways, head, units, *rows = out.splitlines()
    assert about == "# all_reduce, 2 ranks"
    assert ways.split() == ["#", "out-of-place", "in-place"]
    assert head.split()[:8] == ["#", "size", "count", "type", "redop", "time", "algbw", "busbw"]
    assert units.startswith("#")
    assert rows[0].split()[:4] == ["4096", "1024", "float32", "sum"]
    assert rows[0].split()[-1] == "direct"
    assert len({len(row.rstrip("abcdefghijklmnopqrstuvwxyz")) for row in rows}) == 1


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(monkeypatch, capsys, width):
    from openmrc.cli.bench_collective import _Table

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    for compare in (None, "gloo"):
        settings = bench.Settings("reduce_scatter", op="product", compare=compare)
        table = _Table(settings, 4)
        table.add(line(1 << 27, 1e9, gloo=1e8 if compare else None))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width, max(lines, key=len)


@pytest.mark.parametrize(
    "names",
    [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ],
    ids=["torchrun", "Open MPI", "MPICH"],
)
def test_it_is_a_rank_of_a_job_that_a_launcher_has_started(names):
    jobs = []
    for job in local_ranks(2):
        renamed = {names[0]: job.pop("RANK"), names[1]: job.pop("WORLD_SIZE"), **job}
        jobs.append(start("all_gather", *SMALL, "--json", **renamed))
    outs = [job.communicate(timeout=100) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], outs
    assert len(json.loads(outs[0][0])) == 2
    assert outs[1][0] == ""


def test_a_rank_that_fails_ends_the_others():
    addresses = {"OPENMRC_ADDRESSES": "192.0.2.1"}
    code, _, err = run("all_reduce", "--ranks", "3", **addresses)
    assert code == 1
    assert "192.0.2.1" in err
    assert "failed" in err


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_ctrl_c_keeps_the_sizes_that_are_measured(tmp_path, monkeypatch, capsys):
    def interrupted(ranks, settings, measured, **places):
        measured(line(4096, 1e9))
        raise KeyboardInterrupt

    monkeypatch.setattr("openmrc.cli.bench_collective._spawned", interrupted)
    picture = tmp_path / "so-far.png"
    assert main(["bench-collective", "all_reduce", "--json", "--picture", str(picture)]) == 130
    shown = capsys.readouterr()
    assert [each["size"] for each in json.loads(shown.out)] == [4096]
    assert shown.err.splitlines() == [f"wrote {picture}", "error: interrupted"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_in_tune_shows_what_is_measured_and_writes_no_file(tmp_path, monkeypatch, capsys):
    entry = Entry(2, True, 4096, None, 8192)
    found = iter([Measured(entry, {}, {})])

    def interrupted(*arguments, **more):
        for each in found:
            return each
        raise KeyboardInterrupt

    monkeypatch.setattr("openmrc.collectives.tune.measure", interrupted)
    file = tmp_path / "tuning.json"
    file.write_text("of another day")
    assert main(["tune", "-o", str(file), "--json"]) == 130
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] is None
    assert len(shown["measured"]) == 1
    assert file.read_text() == "of another day"


def test_a_launched_job_prints_each_size_when_it_is_measured(monkeypatch, capsys):
    seen = []

    def run_here(comm, settings, observe):
        for size in (4096, 8192):
            observe(line(size, 1e9))
            seen.append(capsys.readouterr().out)

    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("openmrc.collectives.bench.run", run_here)
    monkeypatch.setattr(
        Communicator, "from_environment", lambda: contextlib.nullcontext(SimpleNamespace(rank=0))
    )
    assert main(["bench-collective", "all_reduce"]) == 0
    assert [text.splitlines()[-1].split()[0] for text in seen] == ["4096", "8192"]


def test_what_cannot_be_measured_is_refused():
    for arguments, words in [
        (("all_sum",), "no operation 'all_sum'"),
        (("broadcast", "--root", "2"), "root 2 does not exist: there are ranks 0 to 1"),
        (("all_reduce", "--compare", "nccl"), "no comparison with 'nccl'"),
        (("all_reduce", "--lab", "--ranks", "9"), "9 ranks are too many"),
        (("all_reduce", "--lab", "--loopback"), "exclude each other"),
        (("all_reduce", "--picture", "/nowhere/x.png"), "/nowhere"),
        (("all_reduce", "--picture", "x.txt"), "x.txt is no picture"),
    ]:
        code, _, err = run(*arguments)
        assert code != 0
        assert words in err, err
    with pytest.raises(ArgumentError, match="factor"):
        bench.Settings("all_reduce", factor=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-d", "float12"), "NumPy has no type 'float12'"),
        (("--op", "mean"), 'there is no reduction "mean"'),
        (("--ranks", "3", "--algorithm", "halving"), "cannot be executed by halving"),
    ],
)
def test_what_the_ranks_refuse_is_said_once(arguments, words):
    code, _, err = run("all_reduce", *arguments)
    assert code == 2
    assert err.count(words) == 1, err
    assert err.startswith("error: ")


def test_a_comparison_without_torch_says_what_to_install():
    # A torch that cannot be imported.
    code, _, err = run("all_reduce", "--compare", "gloo", PYTHONPATH=_without_torch())
    assert code == 1
    assert "gloo is a backend of PyTorch, which is not installed: pip install" in err


def _without_torch():
    import tempfile
    from pathlib import Path

    directory = Path(tempfile.mkdtemp())
    (directory / "torch.py").write_text("raise ImportError('no torch')\n")
    return os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def test_the_picture_has_both_curves(tmp_path):
    pytest.importorskip("matplotlib")
    lines = [line(1 << power, 2.0**power, gloo=2.0 ** (power - 2)) for power in range(3, 28)]
    draw(lines, "all_reduce", tmp_path / "busbw.svg")
    text = (tmp_path / "busbw.svg").read_text()
    for words in ("mrc, in place", "mrc, out of place", "gloo", "GB/s", "8 B", "4 KiB"):
        assert words in text, words
    assert [size_text(size) for size in (8, 4096, 1 << 20, 3 << 29)] == ["8 B", "4 KiB", "1 MiB", "1.5 GiB"]


@needs_root
def test_ranks_are_hosts_of_the_lab():
    code, out, err = run("all_reduce", "--lab", "--ranks", "3", *SMALL, "--json")
    assert code == 0, err
    assert all(each["network_bytes"] > 0 for each in json.loads(out))
