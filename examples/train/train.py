"""A small transformer trained with DDP over MRC: what a program needs is one word, "mrc".

torchrun --nproc-per-node 4 train.py
torchrun --nproc-per-node 4 train.py gloo      # the same, for comparison
torchrun --nproc-per-node 4 train.py mrc 500   # another number of steps
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from openmrc.demos.training import text
from openmrc.demos.training.model import Batches, ByteModel, Shape, loss_of

torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group(sys.argv[1] if len(sys.argv) > 1 else "mrc")
rank = dist.get_rank()

shape = Shape(layers=4, width=256)
model = DistributedDataParallel(ByteModel(shape))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
batches = Batches(text.made(), shape, rank, batch=4)
for step in range(int(sys.argv[2]) if len(sys.argv) > 2 else 50):
    began = time.monotonic()
    optimizer.zero_grad()
    loss = loss_of(model, *batches.next())
    loss.backward()  # DDP averages the gradients of all ranks meanwhile.
    optimizer.step()
    if rank == 0 and step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}, {(time.monotonic() - began) * 1e3:.0f} ms")
dist.destroy_process_group()
