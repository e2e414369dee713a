"""Training with groups in two dimensions, recorded: Chakra traces of all ranks, for simulators.

torchrun --nproc-per-node 8 record.py fsdp traces/fsdp         # FSDP over 4 ranks, tensor parallel over 2
torchrun --nproc-per-node 8 record.py experts traces/experts   # experts over 4 ranks, two copies of each
torchrun --nproc-per-node 8 record.py fsdp traces/fsdp 10      # ten steps in place of five
"""

import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd as all_to_all
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from openmrc.demos.training import text
from openmrc.demos.training.model import Batches, ByteModel, Shape, loss_of
from openmrc.torch import trace

SHAPE = Shape(layers=4, width=128)
INNER = {"fsdp": 2, "experts": 4}
"""Consecutive ranks that share a batch, or have an expert each."""


class Experts(nn.Module):  # type: ignore[misc]
    """An expert on each rank of a group. A token goes to the expert that its position names."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.own = nn.Sequential(nn.Linear(SHAPE.width, 512), nn.GELU(), nn.Linear(512, SHAPE.width))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: batch, position, width."""
        tokens = x.transpose(0, 1).contiguous()
        here = all_to_all(tokens, None, None, self.group)
        return all_to_all(self.own(here), None, None, self.group).transpose(0, 1)


def with_fsdp(mesh: DeviceMesh) -> nn.Module:
    """Each block's network divided over the inner ranks, everything sharded over the outer ones."""
    model = ByteModel(SHAPE)
    plan = {"network.0": ColwiseParallel(), "network.2": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["inner"], plan)
        fully_shard(block, mesh=mesh["outer"])
    fully_shard(model, mesh=mesh["outer"])
    return model


def with_experts(mesh: DeviceMesh) -> nn.Module:
    """Experts in every second block. Their gradients are averaged over copies, all others over all ranks."""
    model = ByteModel(SHAPE)
    for block in list(model.blocks)[1::2]:
        block.network = Experts(mesh["inner"].get_group())
    own = [name for name, _ in model.named_parameters() if ".own." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
    return DistributedDataParallel(model)


torch.set_num_threads(1)
torch.manual_seed(1)
kind, prefix, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5
dist.init_process_group("mrc")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size // INNER[kind], INNER[kind]), mesh_dim_names=("outer", "inner"))
model = with_fsdp(mesh) if kind == "fsdp" else with_experts(mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
batches = Batches(text.made(), SHAPE, rank // 2 if kind == "fsdp" else rank, batch=4)
for step in range(steps + 1):
    if step == 1:  # The first step makes buffers and groups.
        trace.begin()
    optimizer.zero_grad()
    loss = loss_of(model, *batches.next())
    loss.backward()
    for name, parameter in model.named_parameters():
        if ".own." in name and parameter.grad is not None:
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, mesh["outer"].get_group())
    optimizer.step()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.4f}")
trace.write(prefix)
dist.destroy_process_group()
