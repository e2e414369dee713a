"""The sum of sparse tensors (COO) over all ranks.

Torch hands complex ones over as copies, here as with gloo, so the sum does not reach them.
"""

import torch

from openmrc.collectives import Communicator
from openmrc.errors import MismatchError


def sum_sparse(comm: Communicator, tensor: torch.Tensor, timeout: float) -> None:
    """Replaces the tensor by the sum of all ranks'. It returns when that is done.

    Raises:
        MismatchError: if the ranks' tensors differ in shape or in the number of sparse dimensions.
    """
    own = tensor.detach().coalesce()
    shape = [own.sparse_dim(), *own.shape]
    # All ranks learn of unequal shapes at once. No shape has more dimensions than fit.
    mine = torch.zeros(64, dtype=torch.int64)
    mine[: len(shape) + 1] = torch.tensor([own._nnz(), *shape])
    every = torch.empty(comm.size * 64, dtype=torch.int64)
    comm.all_gather(mine, every, timeout=timeout)
    table = every.view(comm.size, 64)
    if not (table[:, 1:] == mine[1:]).all():
        rank = int((table[:, 1:] != mine[1:]).any(1).nonzero()[0])
        raise MismatchError(f"the sparse tensors of ranks {comm.rank} and {rank} have different shapes")
    counts = [int(count) for count in table[:, 0]]

    def gathered(part: torch.Tensor) -> torch.Tensor:
        """The rows of all ranks, one behind the other."""
        row = part[0].numel() if part.shape[0] else part.new_empty(part.shape[1:]).numel()
        whole = torch.empty([sum(counts), *part.shape[1:]], dtype=part.dtype)
        if whole.numel():
            sizes = [count * row for count in counts]
            comm.all_gather(part.contiguous(), whole, counts=sizes, timeout=timeout)
        return whole

    indices, values = gathered(own.indices().t()), gathered(own.values())
    total = torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)
    with torch.no_grad():
        tensor.copy_(total.coalesce())
