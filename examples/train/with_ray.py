"""Ray Train over MRC, by the backend's name.

python with_ray.py
"""

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train() -> float:
    """What each worker does: a linear model, with a batch of its own in each step. Its last loss."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(100):
        inputs = torch.randn(16, 8, generator=data)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ torch.arange(8.0).reshape(8, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {dist.get_rank()} over {dist.get_backend()}", flush=True)
    return float(loss)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train, scaling_config=ScalingConfig(num_workers=2), torch_config=TorchConfig(backend="mrc")
    )
    print(f"loss {trainer.fit().return_value:.4f}")
