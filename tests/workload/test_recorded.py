"""Chakra traces: what is read is what they mean, and what is wrong with them is named."""

import gzip
import json
from pathlib import Path

import pytest

from openmrc import workload
from openmrc.collectives import OperationRecord, trace
from openmrc.errors import FormatError
from openmrc.workload import chakra
from openmrc.workload.order import run as execute
from tests.helpers.commands import one_line_error, run
from tests.helpers.repository import ROOT

TRACES = ROOT.parent / "shared" / "traces"
"""Files that others wrote; not part of the project."""

# The pair of docs/spec/workloads.md, section 2.10, as protobuf wrote it.
HEAD = """
0000070a05312e302e303d08011203667764180438ac02520e0a0969735f6370755f
6f70d80100520d0a076e756d5f6f707348c0843d52100a0b74656e736f725f73
697a656880204a08021202617218072a0101520e0a0969735f6370755f6f70d8
0100520d0a09636f6d6d5f747970654800520f0a09636f6d6d5f73697a654880
"""
FIRST = """
8040520d0a0770675f6e616d65ea0101374a08031202747818052201022a0201
02520f0a09636f6d6d5f73697a6548808004520c0a08636f6d6d5f7372633800
520c0a08636f6d6d5f6473743801520c0a08636f6d6d5f7461673805
"""
SECOND = """
8040520d0a0770675f6e616d65ea0101374608031202727818062a0102520f0a
09636f6d6d5f73697a6548808004520c0a08636f6d6d5f7372633800520c0a08
636f6d6d5f6473743801520c0a08636f6d6d5f7461673805
"""


def pair():
    """Both files; the version is the one of the page."""
    head = bytes.fromhex("".join(HEAD.split()))[2:].replace(b"1.0.0", b"0.0.4")
    return [head + bytes.fromhex("".join(each.split())) for each in (FIRST, SECOND)]


def write(directory, files, groups=None):
    for rank, contents in enumerate(files):
        (directory / f"job.{rank}.et").write_bytes(contents)
    if groups is not None:
        (directory / "job.groups.json").write_text(json.dumps(groups))
    return directory / "job"


def one(directory, *nodes, ranks=2):
    """Traces of ranks that all do the same."""
    return write(directory, [chakra.encode(nodes)] * ranks)


def collective(number, kind, size, after=(), **more):
    attributes = {"comm_type": kind, "comm_size": size, **more}
    return chakra.node(number, "n", chakra.COLL, after, 0, 0, attributes)


@pytest.mark.parametrize("packed", [False, True])
def test_the_pair_of_the_format_is_read(tmp_path, packed):
    files = [gzip.compress(each) if packed else each for each in pair()]
    step = workload.load(write(tmp_path, files, {"7": [0, 1]}))
    assert list(workload.problems(step)) == []
    assert step.groups == {"7": (0, 1)}
    figures = workload.volume(step)
    assert [each.fabric_bytes for each in figures.classes] == [1_114_112, 1_048_576]
    ends = execute(step, lambda node, group: 1000 if group else 10).ends
    assert ends == {0: {1: 300_000, 2: 301_000, 3: 301_000}, 1: {1: 300_000, 2: 301_000, 3: 301_010}}


def test_one_of_the_files_stands_for_all(tmp_path):
    prefix = write(tmp_path, pair(), {"7": [0, 1]})
    assert workload.load(Path(f"{prefix}.1.et")) == workload.load(prefix)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (0, lambda n: 2 * (n - 1) * 840 // n),
        (2, lambda n: (n - 1) * 840),
        (6, lambda n: (n - 1) * 840 // n),
        (7, lambda n: (n - 1) * 840 // n),
        (8, lambda n: (n - 1) * 840 // n),
        (5, lambda n: 840),
        (9, lambda n: 0),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_sizes_are_those_of_the_format(tmp_path, kind, sent, ranks):
    step = workload.load(one(tmp_path, collective(1, kind, 840), ranks=ranks))
    assert list(workload.problems(step)) == []
    assert workload.volume(step).fabric_bytes == ranks * sent(ranks)


def test_dependencies_may_be_unpacked_and_unknown_fields_are_skipped(tmp_path):
    plain = chakra.node(2, "b", chakra.COMP, [1], 0, 5)
    first = chakra.node(1, "a", chakra.COMP, [], 0, 7)
    # Field 4 as a single number, field 15 as text, field 14 as eight bytes.
    odd = chakra.node(2, "b", chakra.COMP, [], 0, 5) + b"\x20\x01\x7a\x02hi\x71" + bytes(8)
    found = [workload.load(one(tmp_path, first, last, ranks=1)) for last in (plain, odd)]
    assert found[0] == found[1]
    assert execute(found[0]).ns == 12_000


def test_groups_are_found_beside_the_traces_and_in_metadata(tmp_path):
    reduce = collective(1, 2, 8, pg_name="5")
    prefix = one(tmp_path, reduce, ranks=3)
    with pytest.raises(FormatError, match=r"^here: rank 0, node 1, group: 5 is not known"):
        workload.require(workload.load(prefix), "here")
    values = b'[\'[{"pg_name": "5", "ranks": [2, 0, 1]}]\']'
    inputs = b"\x42" + bytes([len(values) + 2]) + b"\x0a" + bytes([len(values)]) + values
    metadata = chakra.node(9, "## process_group:init ##", 1, [], 0, 0) + inputs
    step = workload.load(one(tmp_path, metadata, reduce, ranks=3))
    assert step.groups == {"5": (2, 0, 1)}
    (tmp_path / "comm_group.json").write_text('{"5": [0, 1, 2]}')
    assert workload.load(prefix).groups == {"5": (0, 1, 2)}


def test_a_trace_that_is_cut_within_a_record_is_refused(tmp_path):
    whole = pair()
    ends = {8, 8 + 62, 8 + 62 + 75, len(whole[0])}
    for length in set(range(len(whole[0]))) - ends:
        prefix = write(tmp_path, [whole[0][:length], whole[1]], {"7": [0, 1]})
        with pytest.raises(FormatError, match=r"job\.0\.et"):
            workload.load(prefix)
    for length in range(1, len(gzip.compress(whole[0]))):
        prefix = write(tmp_path, [gzip.compress(whole[0])[:length], whole[1]], {"7": [0, 1]})
        with pytest.raises(FormatError, match=r"job\.0\.et"):
            workload.load(prefix)


def test_a_missing_rank_is_named(tmp_path):
    prefix = write(tmp_path, [*pair(), pair()[0]])
    Path(f"{prefix}.1.et").unlink()
    with pytest.raises(FormatError, match=r"job\.1\.et is missing, but there is .*job\.2\.et"):
        workload.load(prefix)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            chakra.node(4, "x", chakra.SEND, [], 0, 0, {"comm_size": 1}),
            r"node 4 \(x\), comm_dst: the node lacks",
        ),
        (
            chakra.node(4, "x", chakra.RECV, [], 0, 0, {"comm_src": 1}),
            r"node 4 \(x\), comm_size: the node lacks",
        ),
        (chakra.node(4, "x", chakra.COLL, [], 0, 0), r"node 4 \(x\), comm_type: the node lacks"),
        (
            chakra.node(4, "", chakra.COLL, [], 0, 0, {"comm_type": 3}),
            r"node 4, comm_type: 3 \(gather\) is not",
        ),
        (chakra.node(4, "", 12, [], 0, 0), "node 4, type: there is no type 12"),
        (b"\x08\x04\x5a\x00", "node 4, type: it is of Chakra 0.0.2"),
        (b"\x08\x04\x23", "node 4, record: it is broken"),
    ],
)
def test_what_cannot_be_run_is_named(tmp_path, node, message):
    with pytest.raises(FormatError, match=rf"job\.0\.et, rank 0, {message}"):
        workload.load(one(tmp_path, node))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "it is empty"),
        (b"\x03\x08\x01\x18", "it has no metadata: traces of Chakra 0.0.1 and 0.0.2"),
        (b"\x04\x0a\x02\x08\x01", "its metadata are those of Chakra 0.0.3"),
        (b'{"workload_graph": []}', "it is JSON of a Chakra tool"),
        (b"\xff" * 20, "record 0 ends after the file"),
    ],
)
def test_other_forms_are_refused_by_name(tmp_path, contents, message):
    with pytest.raises(FormatError, match=rf"job\.0\.et: {message}"):
        workload.load(write(tmp_path, [contents]))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ("[]", "it is no object of groups"),
        ("{", "it is no JSON"),
        ('{"7": []}', "group 7: it is no list of ranks"),
        ('{"7": [0, 2]}', "group 7: rank 2 does not exist: there are 2"),
    ],
)
def test_wrong_groups_are_named(tmp_path, groups, message):
    prefix = write(tmp_path, pair())
    Path(f"{prefix}.groups.json").write_text(groups)
    with pytest.raises(FormatError, match=rf"job\.groups\.json: {message}"):
        workload.load(prefix)


def test_the_commands_take_a_prefix(tmp_path):
    reduce = collective(2, 0, 4096, after=[1])
    prefix = one(tmp_path, collective(1, 9, 0), reduce)
    assert "2 ranks, 4 nodes" in run("workload", "show", prefix).stdout
    done = run("workload", "run", prefix)
    assert done.returncode == 0, done.stderr
    Path(f"{prefix}.0.et").write_bytes(chakra.encode([collective(1, 9, 0)]))
    wrong = run("workload", "check", prefix)
    assert "rank 1, node 2, group: rank 0 lacks this all_reduce" in one_line_error(wrong)


@pytest.mark.parametrize(("name", "sent"), [("all_gather", 750), ("all_to_all", 1000), ("broadcast", 1000)])
def test_what_collectives_record_has_its_bytes(tmp_path, name, sent):
    """A record of all_to_all counts what was sent, of others the elements of all ranks."""
    done = [(trace.Group("", (0, 1, 2, 3)), OperationRecord(1, name, "", 1000, 1.5, 0.25, 0, 0, 0, 0, 4))]
    files = [trace.encode(rank, done) for rank in range(4)]
    step = workload.load(write(tmp_path, files))
    assert list(workload.problems(step)) == []
    # Parts are whole bytes.
    assert sent <= workload.volume(step).classes[0].fabric_bytes <= sent + 3


def test_the_recorded_training_of_the_demo_can_run():
    step = workload.load(ROOT / "examples" / "scenarios" / "train-demo")
    assert list(workload.problems(step)) == []
    # 3.3 million parameters: in each of 40 steps a ring of four sends 1.5 times 13.2 MB at each rank.
    gradients = 40 * 4 * 1.5 * 13.2e6
    assert gradients < workload.volume(step).fabric_bytes < 1.02 * gradients


@pytest.mark.parametrize(
    ("name", "operations"),
    [
        ("fsdp", {"all_gather", "reduce_scatter", "all_reduce"}),
        ("experts", {"all_to_all", "all_reduce", "broadcast"}),
    ],
)
def test_the_published_sets_can_run(name, operations):
    step = workload.load(ROOT / "docs" / "data" / "traces" / name)
    assert list(workload.problems(step)) == []
    assert len(step.ranks) == 8
    assert {row.operation for row in workload.volume(step).classes[0].rows if row.operation} == operations


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces of ASTRA-sim are not here")
@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("name", ["all_reduce", "all_to_all"])
def test_traces_of_others_are_read(name, ranks):
    folder = TRACES / "astra-sim" / "examples" / "workload" / "microbenchmarks"
    step = workload.load(folder / name / f"{ranks}npus_1MB" / name)
    assert list(workload.problems(step)) == []
    times = 2 if name == "all_reduce" else 1
    assert workload.volume(step).fabric_bytes == times * (ranks - 1) << 20
