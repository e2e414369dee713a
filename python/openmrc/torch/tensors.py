"""Tensors of a call as what a communicator takes: contiguous, real, in main memory."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from openmrc.errors import ArgumentError, UnsupportedError
from openmrc.torch.staging import copy_back, in_main_memory, is_accelerator, room


class Target:
    """Where results go: the tensor itself, or a copy of it in main memory that is copied back.

    Args:
        tensor: What the operation writes.
        keep: Whether it reads it too.
    """

    def __init__(self, tensor: torch.Tensor, *, keep: bool = False) -> None:
        check(tensor)
        self._tensor = tensor
        self._copy: torch.Tensor | None = None
        if tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self.data = real(tensor.detach()) if tensor.is_complex() else tensor
            return
        self._copy = in_main_memory(plain(tensor)) if keep else room(tensor.shape, tensor)
        self.data = real(self._copy)

    @property
    def finish(self) -> Callable[[], None] | None:
        """What is left to do once the results are there."""
        return None if self._copy is None else self.copy_back

    def copy_back(self) -> None:
        """Copies the results where they belong."""
        if self._copy is not None:
            copy_back(self._tensor, self._copy)


def one(values: Sequence[Any]) -> Sequence[Any]:
    """The values of a call, of which a backend for tensors in main memory has one."""
    if len(values) != 1:
        raise ArgumentError(f"a rank has one device, and one tensor each call, not {len(values)}")
    return values


def check(tensor: torch.Tensor) -> None:
    """Refuses tensors that are sparse or that have no memory."""
    if not tensor.is_cpu and not is_accelerator(tensor.device):
        raise ArgumentError(
            f"a tensor is on device {tensor.device}: the backend mrc carries tensors in main memory and on"
            " accelerators"
        )
    if tensor.is_sparse:
        raise UnsupportedError("the backend mrc has no operations on sparse tensors")


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gradient, contiguous, with its numbers as they are."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def ready(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as an input: contiguous and real, in main memory."""
    check(tensor)
    return real(in_main_memory(plain(tensor)))


def real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def doubled(counts: list[int], tensor: torch.Tensor) -> list[int]:
    """Numbers of elements, of complex ones as pairs."""
    return [2 * count for count in counts] if tensor.is_complex() else counts


def rows(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    """Elements for each rank, of splits along the first dimension."""
    if not splits:
        if tensor.shape[0] % ranks:
            raise ArgumentError(f"{tensor.shape[0]} rows cannot be divided alike among {ranks} ranks")
        splits = [tensor.shape[0] // ranks] * ranks
    if sum(splits) != tensor.shape[0]:
        raise ArgumentError(
            f"splits {list(splits)} do not add up to the {tensor.shape[0]} rows of the tensor"
        )
    row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return doubled([split * row for split in splits], tensor)
