"""Replicas of a model that train together, go on when one dies, and take it back when it returns.

    with Replicas(coordinator_address, model, optimizer) as job:
        while job.steps < 1000:
            job.begin()
            loss = model(batch(job.steps, job.rank, job.size)).mean()
            optimizer.zero_grad()
            loss.backward()
            job.average_gradients()
            if job.commit():
                optimizer.step()

The :class:`~openmrc.collectives.elastic.Coordinator` runs where the job is started.
"""

import io
from typing import Any

import torch

from openmrc.collectives.elastic import Coordinator, Elastic
from openmrc.errors import Error

_BUCKET_BYTES = 25 << 20
"""As in DDP: operations of this size are as fast as larger ones."""


class Replicas(Elastic):
    """One replica, with the whole model or, if its parameters are DTensors, its part of it.

    Args:
        address: Host and port of the coordinator.
        model: Its gradients are averaged; a newcomer gets its parameters and buffers.
        optimizer: A newcomer gets its state.
        **options: Those of :class:`Elastic`.

    Raises:
        ConnectError: if there is no coordinator.
    """

    def __init__(
        self, address: tuple[str, int], model: torch.nn.Module, optimizer: Any = None, **options: Any
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        super().__init__(address, **options)

    def begin(self, *_: Any) -> None:
        """Begins a step; a newcomer gets the state of model and optimizer."""
        super().begin(self._state, self._load)

    def average_gradients(self) -> None:
        """Replaces all gradients by the mean of all replicas'. Errors do not raise: see :meth:`commit`."""
        bucket: list[torch.Tensor] = []
        size = 0
        for gradient in self._gradients():
            if bucket and (size + gradient.nbytes > _BUCKET_BYTES or gradient.dtype != bucket[0].dtype):
                self._average(bucket)
                bucket, size = [], 0
            bucket.append(gradient)
            size += gradient.nbytes
        if bucket:
            self._average(bucket)

    def _gradients(self) -> list[torch.Tensor]:
        found = []
        for parameter in self._model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # Another replica may have one.
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
            found.append(gradient.to_local() if hasattr(gradient, "to_local") else gradient)
        return found

    def _average(self, bucket: list[torch.Tensor]) -> None:
        if self.error is not None:
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
        self.all_reduce(flat, op="avg")
        for gradient, mean in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            gradient.copy_(mean.view(gradient.shape))

    def _state(self) -> bytes:
        file = io.BytesIO()
        optimizer = None if self._optimizer is None else self._optimizer.state_dict()
        torch.save({"model": self._model.state_dict(), "optimizer": optimizer}, file)
        return file.getvalue()

    def _load(self, data: bytes) -> None:
        found = torch.load(io.BytesIO(data), weights_only=True)
        self._model.load_state_dict(found["model"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(found["optimizer"])


__all__ = ["Coordinator", "Error", "Replicas"]
