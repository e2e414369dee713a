"""The generator against closed forms and published figures (docs/workloads.md, "What is generated")."""

from collections import Counter
from dataclasses import replace

import pytest

from openmrc import workload
from openmrc.errors import ArgumentError
from openmrc.workload import Layout, Model, bytes_sent, preset
from openmrc.workload.layout import order
from openmrc.workload.order import run

EVEN = Model(8, 1024, 4096, 8, 8, 128, 0, 512)
"""Without embeddings, so that all stages compute the same."""


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("gpt3-175b", 174.6, 174.6),
        ("llama3-8b", 8.03, 8.03),
        ("llama3-70b", 70.55, 70.55),
        ("llama3-405b", 405.85, 405.85),
        ("mixtral-8x7b", 46.70, 12.88),
        ("mixtral-8x22b", 140.63, 39.16),
        ("deepseek-v3", 671.03, 37.55),
    ],
)
def test_presets_have_the_published_numbers_of_parameters(name, billions, active):
    model = preset(name)
    assert model.parameters() / 1e9 == pytest.approx(billions, abs=0.05 if billions > 100 else 0.005)
    assert model.parameters(active=True) / 1e9 == pytest.approx(active, abs=0.05 if active > 100 else 0.005)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("gpt3-175b", 1.062e12),
        ("llama3-70b", 4.492e11),
        ("llama3-405b", 2.524e12),
        ("mixtral-8x22b", 2.422e11),
        ("deepseek-v3", 2.504e11),
    ],
)
def test_operations_of_a_token_are_six_for_each_active_parameter_and_those_of_attention(name, flops):
    model = preset(name)
    used = model.parameters(active=True) - (0 if model.tied else model.embedding_parameters())
    assert model.flops_per_token() == 6 * used + 3 * model.layers * model.attention_flops()
    assert model.flops_per_token() == pytest.approx(flops, rel=1e-3)


@pytest.mark.parametrize(("tensor", "pipeline", "data"), [(1, 1, 1), (2, 2, 2), (4, 4, 1)])
def test_ranks_together_compute_what_their_tokens_need(tensor, pipeline, data):
    model = preset("llama3-8b")
    layout = Layout(tensor * pipeline * data, tensor, pipeline, data, microbatches=4)
    step = workload.generate(model, layout)
    ns = sum(each.ranks * each.computed_ns for each in workload.volume(step).classes)
    tokens = data * layout.microbatches * model.sequence
    assert ns * 794.5e3 == pytest.approx(tokens * model.flops_per_token(), rel=1e-4)


def sent(step, rank):
    """Bytes that a rank sends by role of the group; messages have the role p2p."""
    found = Counter()
    for node in step.programs[step.ranks[rank].program]:
        if node.kind in ("collective", "send"):
            size = len(step.groups[step.group_of(rank, node)]) if node.group else 2
            found[node.group or "p2p"] += bytes_sent(node, size)
    return {role: round(count / 1e9, 2) for role, count in found.items()}


def test_a_dense_step_sends_what_its_layout_needs():
    # 70B on 64 GPUs: X = 134 MB; a middle stage sends 10 (t-1)/t X for each layer and microbatch, v X / t
    # each way, and (n-1)/n (4 + 2) bytes for each parameter.
    layout = Layout(64, 4, 8, 2, microbatches=128, schedule="interleaved", chunks=5)
    step = workload.generate(preset("llama3-70b"), layout)
    middle = 3 * 8
    found = sent(step, middle)
    assert found["tp"] == pytest.approx(1288, abs=1)
    assert found["p2p"] == pytest.approx(42.9, abs=0.1)
    parameters = 10 * preset("llama3-70b").layer_parameters(0) // 4
    assert found["dp"] == pytest.approx(6 * parameters / 2 / 1e9, abs=0.01)


def test_a_mixture_of_experts_sends_what_its_layout_needs():
    # Mixtral 8x22B on 128 GPUs: 7 layers a stage, 32 microbatches of 4,096 tokens.
    layout = Layout(128, 2, 8, 8, expert=8, microbatches=32, schedule="interleaved", chunks=7)
    step = workload.generate(preset("mixtral-8x22b"), layout)
    found = sent(step, 3 * 16)
    assert found["tp"] == pytest.approx(28, abs=0.5)
    assert found["ep"] == pytest.approx(39.5, abs=0.1)
    assert found["edp"] == pytest.approx(6.34, abs=0.02)
    assert found["p2p"] == pytest.approx(11.3, abs=0.1)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("name", ["llama3-70b", "deepseek-v3"])
def test_keys_and_values_of_spread_sequences_are_gathered_twice_and_their_gradients_scattered(name, schedule):
    model = replace(preset(name), layers=4, dense_layers=0)
    layout = Layout(32, 2, 2, 2, microbatches=2, context=4, schedule=schedule)
    step = workload.generate(model, layout)
    assert list(workload.problems(step)) == []
    each_token = 2 * 8 * 128 if name == "llama3-70b" else 128 * (128 + 64 + 128)
    whole = 2 * each_token * model.sequence // 2
    layers, passes = 4 // 2, 3
    assert sent(step, 0)["cp"] == pytest.approx(passes * layers * 2 * whole * 3 / 4 / 1e9, abs=0.01)


@pytest.mark.parametrize("context", [1, 2, 4])
def test_ranks_that_share_sequences_compute_what_their_tokens_need(context):
    model = preset("llama3-8b")
    step = workload.generate(model, Layout(16, 2, 2, 4 // context, microbatches=4, context=context))
    ns = sum(each.ranks * each.computed_ns for each in workload.volume(step).classes)
    tokens = 4 // context * 4 * model.sequence
    assert ns * 794.5e3 == pytest.approx(tokens * model.flops_per_token(), rel=1e-4)
    parameters = sum(node.bytes for node in step.programs["stage0"] if node.group == "dp")
    plain = workload.generate(model, Layout(16, 2, 2, 4, microbatches=4))
    assert parameters == sum(node.bytes for node in plain.programs["stage0"] if node.group == "dp")
    assert len(step.groups["dp0"]) == len(plain.groups["dp0"]) == 4


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b"])
@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_every_parameter_is_gathered_and_its_gradient_reduced_once(name, pipeline):
    model = preset(name)
    step = workload.generate(model, Layout(2 * pipeline, 1, pipeline, 2, microbatches=pipeline))
    sums = Counter()
    for nodes in step.programs.values():
        for node in nodes:
            if node.group == "dp":
                sums[node.operation] += node.bytes
    # Both ends of a pipeline hold a tied embedding.
    twice = model.embedding_parameters() if model.tied and pipeline > 1 else 0
    held = model.parameters() + twice
    assert sums == {"all_gather": 2 * held, "reduce_scatter": 4 * held}


@pytest.mark.parametrize(("pipeline", "microbatches"), [(1, 3), (2, 4), (4, 4), (4, 8), (8, 8), (4, 2)])
def test_the_bubble_of_1f1b_is_p_minus_1_of_m(pipeline, microbatches):
    step = workload.generate(EVEN, Layout(pipeline, 1, pipeline, microbatches=microbatches))
    figures = workload.volume(step)
    assert (figures.ideal_ns - figures.compute_ns) * microbatches == figures.compute_ns * (pipeline - 1)


@pytest.mark.parametrize(("pipeline", "microbatches", "chunks"), [(2, 2, 2), (2, 8, 4), (4, 8, 2)])
def test_interleaving_divides_the_bubble_by_the_chunks(pipeline, microbatches, chunks):
    layout = Layout(pipeline, 1, pipeline, microbatches=microbatches, schedule="interleaved", chunks=chunks)
    figures = workload.volume(workload.generate(EVEN, layout))
    bubble = (figures.ideal_ns - figures.compute_ns) * microbatches * chunks
    assert bubble == figures.compute_ns * (pipeline - 1)


@pytest.mark.parametrize(("pipeline", "microbatches"), [(1, 3), (2, 4), (4, 4), (4, 8), (8, 8), (2, 7)])
def test_gradients_of_weights_shrink_the_bubble_to_what_inputs_need(pipeline, microbatches):
    # ZB-H1: (p - 1) (F + B - W), where 1F1B has (p - 1) (F + B + W).
    layout = Layout(pipeline, 1, pipeline, microbatches=microbatches, schedule="zero-bubble")
    step = workload.generate(EVEN, layout)
    figures = workload.volume(step)
    took = Counter()
    for node in step.programs["stage0"]:
        if node.kind == "compute":
            took[node.name[0]] += node.ns
    assert took["F"] + took["B"] + took["W"] == figures.compute_ns
    bubble = (figures.ideal_ns - figures.compute_ns) * microbatches
    assert bubble == (pipeline - 1) * (took["F"] + took["B"] - took["W"])
    plain = workload.volume(workload.generate(EVEN, replace(layout, schedule="1f1b")))
    assert plain.compute_ns == figures.compute_ns
    assert pipeline == 1 or figures.ideal_ns < plain.ideal_ns


@pytest.mark.parametrize(("pipeline", "microbatches"), [(2, 4), (4, 8), (4, 2), (5, 5)])
def test_gradients_of_weights_keep_no_more_microbatches_than_1f1b(pipeline, microbatches):
    for stage in range(pipeline):
        layout = Layout(pipeline, 1, pipeline, microbatches=microbatches, schedule="zero-bubble")
        held = most = 0
        seen = Counter()
        for kind, chunk, microbatch in order(layout, stage):
            held += {"forward": 1, "inputs": 0, "weights": -1}[kind]
            most = max(most, held)
            seen[kind, chunk, microbatch] += 1
        assert held == 0
        assert most <= min(pipeline, microbatches)
        assert len(seen) == sum(seen.values()) == 3 * microbatches


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("name", sorted(workload.PRESETS))
def test_every_preset_can_run(name, schedule):
    model = preset(name)
    expert = 4 if model.experts else 1
    step = workload.generate(model, Layout(8, 2, 1, 4, expert=expert, microbatches=2, schedule=schedule))
    assert list(workload.problems(step)) == []


@pytest.mark.parametrize("model", [EVEN, preset("llama3-8b"), preset("mixtral-8x7b")])
def test_zero_bubble_computes_and_sends_what_1f1b_does(model):
    layout = Layout(16, 2, 2, 4, expert=4 if model.experts else 1, microbatches=4)
    found = []
    for schedule in ("1f1b", "zero-bubble"):
        step = workload.generate(model, replace(layout, schedule=schedule), domain=1)
        assert list(workload.problems(step)) == []
        figures = workload.volume(step)
        found.append((figures.compute_ns, figures.fabric_bytes, figures.groups))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert found[0][1:] == found[1][1:]


def test_groups_are_those_of_megatron():
    layout = Layout(16, 2, 2, 4, expert=4)
    groups = layout.groups(preset("mixtral-8x7b"))
    assert groups["tp"][5] == [10, 11]
    assert groups["dp"][3] == [9, 11, 13, 15]
    assert groups["ep"][2] == [8, 9, 10, 11]
    assert groups["edp"][4] == [8, 12]
    spread = Layout(16, 2, 1, 2, context=4).groups(preset("llama3-8b"))
    assert spread["cp"] == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert spread["dp"] == [[*range(0, 16, 2)], [*range(1, 16, 2)]]


def test_layers_that_do_not_divide_leave_room_for_embedding_and_head():
    parts = Layout(16, 1, 16, microbatches=16).layers(preset("llama3-405b"))
    assert [len(part) for part in parts] == [7, *[8] * 14, 7]
    assert [layer for part in parts for layer in part] == list(range(126))


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(16, 3, 2, 2), "gpus: 16 ranks are not tensor 3 x pipeline 2 x data 2 = 12"),
        (Layout(3, 3), "tensor: 3 does not divide the 32 attention heads"),
        (Layout(5, 1, 5), "pipeline: 32 layers do not divide into 5 parts"),
        (Layout(2, 1, 1, 2, expert=2), "expert: 2, but the model is dense"),
        (Layout(1, chunks=2), "chunks: 2 need the schedule interleaved"),
        (
            Layout(4, 1, 4, 1, 1, 6, schedule="interleaved"),
            "microbatches: 6 are not a multiple of pipeline 4",
        ),
        (Layout(1, microbatches=0), "microbatches: 0 is less than 1"),
    ],
)
def test_layouts_that_do_not_divide_are_refused_by_field(layout, message):
    with pytest.raises(ArgumentError, match=message):
        workload.generate(preset("llama3-8b"), layout)


def test_experts_that_do_not_divide_are_refused():
    model = preset("mixtral-8x7b")
    with pytest.raises(ArgumentError, match="expert: 3 does not divide the 8 experts"):
        workload.generate(model, Layout(3, 1, 1, 3, expert=3))
    with pytest.raises(ArgumentError, match="expert: 8 does not divide the 4 ranks"):
        workload.generate(model, Layout(4, 1, 1, 4, expert=8))


def test_a_class_of_ranks_ends_when_each_of_its_ranks_would():
    """One rank of each class is executed; the same with a class for each rank takes the same time."""
    step = workload.generate(preset("llama3-8b"), Layout(8, 2, 2, 2, microbatches=2))
    apart = {f"r{number}": step.programs[rank.program] for number, rank in enumerate(step.ranks)}
    ranks = [replace(rank, program=f"r{number}") for number, rank in enumerate(step.ranks)]
    each = replace(step, programs=apart, ranks=ranks)

    def takes(node, group):
        return node.bytes // 1000

    together, alone = run(step, takes), run(each, takes)
    assert len(together.ends) < len(alone.ends) == 8
    assert together.ns == alone.ns
