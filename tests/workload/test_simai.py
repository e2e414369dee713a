"""Text of SimAI and AICB: groups, volumes and times as it means them, and what is wrong with it."""

import random
from pathlib import Path

import pytest

from openmrc import workload
from openmrc.errors import FormatError
from tests.helpers.commands import one_line_error, run

TRACES = Path(__file__).parents[3] / "shared" / "traces"
"""Files that others wrote; not part of the project."""

HEADER = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 vpp: 1 ga: 1 all_gpus: 8"
    " checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0"
)
LINES = """\
grad_gather      -1     1 NONE               0     1 NONE               0     1 ALLGATHER              200000 100
grad_param_comm  -1     1 NONE               0     1 NONE               0     1 REDUCESCATTER          400000 100
moe_grad_norm1   -1     1 NONE               0     1 NONE               0     1 ALLGATHER_DP_EP        600000 100
moe_grad_norm2   -1     1 NONE               0     1 NONE               0     1 REDUCESCATTER_DP_EP   1200000 100
attention_column -1 50000 ALLGATHER     524288 50000 REDUCESCATTER 524288 50000 NONE                        0 100
attention_row    -1 20000 REDUCESCATTER 524288 20000 ALLGATHER     524288 20000 NONE                        0 100
moe_dispatch     -1  5000 ALLTOALL_EP   524288  5000 ALLTOALL_EP   524288  5000 NONE                        0 100
moe_experts      -1 80000 NONE               0 80000 NONE               0 80000 NONE                        0 100
moe_combine      -1  5000 ALLTOALL_EP   524288  5000 ALLTOALL_EP   524288  5000 NONE                        0 100
""".splitlines()  # noqa: E501 - the lines of a file
LAYER = "layer -1 7 ALLREDUCE 4096 11 NONE 0 13 ALLREDUCE 8192 100"


def text(lines=None, header=HEADER):
    lines = LINES if lines is None else lines
    return "\n".join([header, str(len(lines)), *lines]) + "\n"


@pytest.fixture
def load(tmp_path):
    def loaded(contents, gpus=None):
        path = tmp_path / "model.txt"
        path.write_text(contents)
        return workload.load(path, gpus)

    return loaded


def test_the_example_of_the_format_has_its_groups_volumes_and_times(load):
    step = load(text())
    assert list(workload.problems(step)) == []
    by_role = {role: [step.groups[f"{role}{at}"] for at in range(count)] for role, count in
               [("tp", 4), ("dp", 2), ("ep", 4), ("dp_ep", 4)]}  # fmt: skip
    assert by_role == {
        "tp": [(0, 1), (2, 3), (4, 5), (6, 7)],
        "dp": [(0, 2, 4, 6), (1, 3, 5, 7)],
        "ep": [(0, 2), (1, 3), (4, 6), (5, 7)],
        "dp_ep": [(0, 4), (1, 5), (2, 6), (3, 7)],
    }
    figures = workload.volume(step)
    sent = dict.fromkeys(by_role, 0)
    for row in figures.classes[0].rows:
        if row.group:
            sent[row.group] += row.bytes_sent
    assert sent == {"tp": 1_048_576, "ep": 1_048_576, "dp": 450_000, "dp_ep": 900_000}
    assert figures.fabric_bytes == 27_577_216
    # Computations, and 100 ns after each of 8 collectives that are waited for.
    assert figures.compute_ns == figures.ideal_ns == 480_012 + 800


def test_a_gradient_of_weights_is_reduced_beside_what_follows(load):
    nodes = load(text([LAYER, LAYER], "DATA all_gpus: 2")).programs["stage0"]
    reduces = [node.id for node in nodes if node.kind == "collective"]
    assert len(reduces) == 2
    assert all(number not in node.after for node in nodes for number in reduces)
    blocking = load(text([LAYER], "MODEL all_gpus: 2")).programs["stage0"]
    assert [node.kind for node in blocking[:3]] == ["compute", "collective", "compute"]
    assert blocking[2].after == (1,)


def test_activations_after_a_checkpoint_are_computed_again(load):
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 1 all_gpus: 1 checkpoints: {} {}"
    lines = [f"layer{at} -1 {10**at} NONE 0 0 NONE 0 0 NONE 0 0" for at in range(4)]
    plain = load(text(lines, header.format("0", "checkpoint_initiates: 0")))
    again = load(text(lines, header.format("1 1", "checkpoint_initiates: 1 3")))
    assert workload.volume(plain).compute_ns == 1111
    assert workload.volume(again).compute_ns == 1111 + 10 + 100


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (2, 4), (4, 3), (4, 8)])
def test_a_pipeline_has_the_bubble_of_1f1b(load, stages, microbatches):
    header = (
        f"HYBRID_TRANSFORMER model_parallel_NPU_group: 1 ep: 1 pp: {stages} vpp: 1 ga: {microbatches}"
        f" all_gpus: {2 * stages} checkpoints: 0 checkpoint_initiates: 0 pp_comm 6291456.0"
    )
    body = ["a -1 40 NONE 0 60 NONE 0 0 NONE 0 0", "b -1 10 NONE 0 20 NONE 0 30 NONE 0 0"]
    first, last = "first -1 5 NONE 0 0 NONE 0 0 REDUCESCATTER 64 0", "last -1 0 NONE 0 3 NONE 0 0 NONE 0 0"
    step = load(text([first, *body * microbatches, last], header))
    assert list(workload.problems(step)) == []
    figures = workload.volume(step)
    assert figures.compute_ns == 160 * microbatches + 8
    assert figures.ideal_ns == 160 * (microbatches + stages - 1) + 8
    messages = [node for nodes in step.programs.values() for node in nodes if node.kind == "send"]
    assert len(messages) == 2 * (stages - 1) * microbatches
    assert {node.bytes for node in messages} == {6291456}


def test_a_file_that_is_cut_anywhere_is_refused(load):
    whole = text()
    # Of the last number digits can be missing; nobody can see that.
    for length in random.Random(2).sample(range(len(whole) - 5), 80):
        with pytest.raises(FormatError, match=r"model\.txt"):
            load(whole[:length])


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (text(header="HYBRID_DLRM ep: 1"), "line 1: policy HYBRID_DLRM is not read, only"),
        (
            text(header="DATA"),
            "line 1: all_gpus: it is not there; say how many ranks there are with --gpus N",
        ),
        (text(header="DATA all_gpus: x"), "line 1: all_gpus: 'x' is not a whole number"),
        (text(header="DATA all_gpus:"), "line 1: all_gpus: it has no value"),
        (text(header="DATA all_gpus: 0"), "line 1: all_gpus: 0 is not 1 to"),
        (text(header=HEADER.replace("ep: 2", "ep: 3")), "line 1: ep: 3 does not divide the 4 tensor"),
        (text(header=HEADER.replace("group: 2", "group: 3")), "line 1: all_gpus: 8 ranks are not divided by"),
        (text(header=HEADER.replace("pp: 1", "pp: 3")), "line 1: all_gpus: 8 ranks are not divided by"),
        (text(header=HEADER.replace("pp: 1", "pp: 2").replace("ga: 1", "ga: 2")), "line 1: ga: the lines do"),
        (text(header="DATA all_gpus: 2 checkpoints: 2 1"), "line 1: checkpoints: 2 numbers of layers do not"),
        (text(header="DATA all_gpus: 2 checkpoints: 1 9"), "line 1: checkpoints: there is no layer 9"),
        (HEADER, "line 2: it is not the number of layers"),
        (f"{HEADER}\nmany\n", "line 2: it is not the number of layers"),
        (f"{HEADER}\n3\n{LAYER}\n", "line 3: there are 1 layers, but line 2 says 3"),
        (text([LAYER, "a -1 1 NONE 0"]), "line 4: it has 5 columns, not 12"),
        (text([LAYER.replace("11", "-11")]), "line 3, column 6: '-11' is not a whole number"),
        (
            text([LAYER.replace("ALLREDUCE 4096", "SUM 4096")]),
            "line 3, column 4: 'SUM' is no collective of a",
        ),
        (
            text([LAYER.replace("ALLREDUCE 8192", "ALLREDUCE_TP 8192")]),
            "line 3, column 10: 'ALLREDUCE_TP' is",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line(load, contents, message):
    with pytest.raises(FormatError, match=rf"model\.txt, {message}"):
        load(contents)


def test_ranks_that_the_file_does_not_say_are_an_option(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text(text([LAYER], "HYBRID_TRANSFORMER model_parallel_NPU_group: 2 checkpoints: 0"))
    wrong = run("workload", "show", path)
    assert wrong.returncode == 1
    assert "--gpus N" in one_line_error(wrong)
    assert "4 ranks" in run("workload", "show", path, "--gpus", 4).stdout
    path.write_text(text())
    assert "it is 8, not the 4 of --gpus" in one_line_error(run("workload", "check", path, "--gpus", 4))


@pytest.mark.skipif(not TRACES.is_dir(), reason="the files of SimAI and AICB are not here")
@pytest.mark.parametrize(
    ("name", "gpus", "ranks"),
    [
        ("simai/microAllReduce.txt", None, 8),
        ("simai/workload_analytical.txt", None, 9216),
        ("aicb/G13B-M1-C01_GPT13B_megatron_tp8_pp1_mbs1_A100.txt", 16, 16),
        ("aicb/L7B-D1-C02_Llama7B_deepspeed_zero3_A100.txt", 8, 8),
        ("aicb/L7B-M1-C04_Llama7B_megatron_tp2_pp1_mbs1_A100.txt", 8, 8),
        ("aicb/all_reduce.txt", 4, 4),
        ("aicb/all_gather.txt", 4, 4),
        ("aicb/all_to_all.txt", 4, 4),
    ],
)
def test_files_of_others_can_run(name, gpus, ranks):
    step = workload.load(TRACES / name, gpus)
    assert len(step.ranks) == ranks
    assert list(workload.problems(step)) == []
    assert workload.volume(step).fabric_bytes > 0
