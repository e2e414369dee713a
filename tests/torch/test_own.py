"""Torch's own tests of its backends, from the installed package, against mrc. `make test-torch` has torch.

The others of its 285 tests need accelerators, MPI or NCCL;
`python tests/helpers/torch_own_tests.py REPORT` runs all.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.repository import ROOT

pytest.importorskip("torch", reason="torch is not installed (make test-torch)")

PASSED = """
test_Backend_enum_class test_DistributedDataParallelCPU test_DistributedDataParallelCPU_grad_is_view
test_DistributedDataParallel_requires_grad test_accumulate_gradients_no_sync
test_accumulate_gradients_no_sync_allreduce_hook test_accumulate_gradients_no_sync_allreduce_with_then_hook
test_accumulate_gradients_no_sync_grad_is_view test_all_gather test_all_gather_coalesced_complex
test_all_gather_coalesced_full_group test_all_gather_coalesced_simple test_all_gather_coalesced_with_empty
test_all_gather_complex test_all_gather_full_group test_all_gather_object_default_pg
test_all_reduce_coalesced_full_group_max test_all_reduce_coalesced_full_group_min
test_all_reduce_coalesced_full_group_product test_all_reduce_coalesced_full_group_sum
test_all_reduce_coalesced_max test_all_reduce_coalesced_max_complex_unsupported
test_all_reduce_coalesced_min test_all_reduce_coalesced_product test_all_reduce_coalesced_sum
test_all_reduce_complex_unsupported_ops test_all_reduce_full_group_max test_all_reduce_full_group_min
test_all_reduce_full_group_product test_all_reduce_full_group_sum test_all_reduce_max test_all_reduce_min
test_all_reduce_product test_all_reduce_sum test_all_reduce_sum_async test_all_reduce_sum_complex
test_barrier test_barrier_full_group test_batch_isend_irecv_gloo test_batch_isend_irecv_gloo_tags
test_broadcast test_broadcast_full_group test_ddp_create_graph test_destroy_full_group test_destroy_group
test_dump_DDP_relevant_env_vars test_gather test_gather_checks test_gather_full_group test_get_future
test_get_rank test_get_rank_size_full_group test_get_rank_size_group
test_grads_same_across_ranks_with_no_sync test_monitored_barrier_gloo
test_monitored_barrier_gloo_subgroup test_reduce_full_group_max test_reduce_full_group_min
test_reduce_full_group_product test_reduce_full_group_sum test_reduce_max test_reduce_min
test_reduce_product test_reduce_sum test_reduce_sum_twice test_scatter test_scatter_checks
test_scatter_complex test_scatter_full_group test_scatter_object_list test_send_recv
test_send_recv_autograd_profiler test_send_recv_torch_profiler test_send_recv_with_tag
test_send_recv_with_tag_autograd_profiler test_send_recv_with_tag_torch_profiler test_static_graph_api_cpu
test_isend test_isend_autograd_profiler test_isend_torch_profiler test_irecv test_send_recv_any_source
test_send_recv_any_source_autograd_profiler test_send_recv_any_source_torch_profiler
test_all_gather_object_subgroup test_sparse_all_reduce_sum test_monitored_barrier_gloo_rank_0_timeout
""".split()  # noqa: SIM905 - a list of that length is read as a paragraph
"""Those for tensors in main memory; docs/torch.md says which fail, and why."""


@pytest.mark.timeout(1200)
def test_torch_finds_a_backend_like_its_own(tmp_path):
    report = tmp_path / "report"
    command = [sys.executable, str(ROOT / "tests" / "helpers" / "torch_own_tests.py"), str(report), *PASSED]
    variables = {"BACKEND": "gloo", "WORLD_SIZE": "3", "TEMP_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = [json.loads(line) for line in report.read_text().splitlines()]
    assert [each for each in outcomes if each["outcome"] != "passed"] == []
    assert len(outcomes) == len(PASSED)
