"""Hugging Face's accelerate over MRC: the process group is made by name first, and the Accelerator takes it.

torchrun --nproc-per-node 2 with_accelerate.py
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("mrc")
accelerator = Accelerator(cpu=True)

inputs = torch.randn(256, 8)
targets = inputs @ torch.arange(8.0).reshape(8, 1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(8):
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    mean = accelerator.reduce(torch.stack(losses).mean(), reduction="mean").item()
    accelerator.print(f"epoch {epoch}: loss {mean:.3f}")
names = gather_object([f"rank {accelerator.process_index}"])
accelerator.print(f"{dist.get_backend()}: {', '.join(names)}")
dist.destroy_process_group()
