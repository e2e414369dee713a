"""Lightning over MRC, by the backend's name.

torchrun --nproc-per-node 2 with_lightning.py
"""

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset


class Line(LightningModule):
    """A linear model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch; its mean over all ranks is recorded at the end of an epoch."""
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Prints the mean loss."""
        loss = self.trainer.callback_metrics["loss"].item()
        self.print(f"epoch {self.current_epoch}: loss {loss:.3f} over {dist.get_backend()}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=0.3)


torch.set_num_threads(1)
seed_everything(1, verbose=False)
data = torch.randn(256, 8)
loader = DataLoader(TensorDataset(data, data @ torch.arange(8.0).reshape(8, 1)), batch_size=16)
trainer = Trainer(
    accelerator="cpu",
    devices=2,
    strategy=DDPStrategy(process_group_backend="mrc"),
    max_epochs=8,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Line(), loader)
dist.destroy_process_group()
