"""A byte-level transformer, and the batches it is trained with. Needs torch."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from openmrc.demos.training.settings import HEADS

_SYMBOLS = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model. Four layers of width 256 have 3.3 million parameters: 13 MB of gradients a step."""

    layers: int
    width: int
    heads: int = HEADS
    context: int = 64
    """Bytes that it sees."""


class Block(nn.Module):
    """Attention to what came before, then a feed-forward network, each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.before_attention = nn.LayerNorm(shape.width)
        self.attention = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.projection = nn.Linear(shape.width, shape.width, bias=False)
        self.before_network = nn.LayerNorm(shape.width)
        self.network = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``x``: batch, position, width."""
        batch, length, width = x.shape
        parts = self.attention(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.before_network(x))


class ByteModel(nn.Module):
    """Predicts the next byte from up to ``context`` bytes."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.symbols = nn.Embedding(_SYMBOLS, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, _SYMBOLS, bias=False)

    def forward(self, seen: Tensor) -> Tensor:
        """Logits (batch, position, 256) of the byte after each of ``seen`` (batch, position)."""
        x = self.symbols(seen) + self.positions.weight[: seen.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class Batches:
    """Random pieces of a text: other ones for each rank and step, the same in every run."""

    def __init__(self, text: bytes, shape: Shape, rank: int, batch: int) -> None:
        self._text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self._context = shape.context
        self._batch = batch
        self._dice = torch.Generator().manual_seed(1000 + rank)

    def next(self) -> tuple[Tensor, Tensor]:
        """What is seen and what follows, each batch x context."""
        starts = torch.randint(len(self._text) - self._context - 1, (self._batch, 1), generator=self._dice)
        pieces = self._text[starts + torch.arange(self._context + 1)]
        return pieces[:, :-1], pieces[:, 1:]


def loss_of(model: nn.Module, seen: Tensor, following: Tensor) -> Tensor:
    """Mean cross entropy of a byte, in nats; 5.5 is a guess among 256."""
    logits = model(seen)
    return functional.cross_entropy(logits.flatten(0, 1), following.flatten())


def continued(model: nn.Module, begin: bytes, count: int, context: int) -> bytes:
    """The ``count`` bytes that the model finds most likely after ``begin``, with their begin."""
    data = list(begin)
    with torch.no_grad():
        for _ in range(count):
            seen = torch.tensor([data[-context:]])
            data.append(int(model(seen)[0, -1].argmax()))
    return bytes(data)
