"""Transformers by their sizes, and what follows from them: parameters and floating-point operations."""

from dataclasses import dataclass

from openmrc.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: widths of its low-rank parts (DeepSeek-V2, arXiv 2405.04434)."""

    query: int
    key_value: int
    plain: int
    """Width of a head's part without positions."""
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The feed-forward part of a mixture of experts."""

    count: int
    routed: int
    """Experts that a token uses, beside the shared ones."""
    width: int
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder-only transformer. Norms and biases, less than 0.1 % of the parameters, are left out."""

    layers: int
    hidden: int
    feed_forward: int
    """Width of the feed-forward part of dense layers."""
    heads: int
    key_value_heads: int
    head: int
    """Width of a head."""
    vocabulary: int
    sequence: int
    """Tokens of a training sequence."""
    gated: bool = True
    tied: bool = False
    """Input and output embeddings are the same parameters."""
    experts: Experts | None = None
    dense_layers: int = 0
    """Of a mixture of experts: layers at the beginning that are dense."""
    latent: Latent | None = None
    ends: tuple[int, int] = (1, 1)
    """Layers that the first and the last pipeline stage have less where the layers do not divide evenly."""
    source: str = ""

    def attention_parameters(self) -> int:
        """Parameters of the attention of a layer."""
        h, a, latent = self.hidden, self.heads, self.latent
        if latent is None:
            return 2 * h * a * self.head + 2 * h * self.key_value_heads * self.head
        query = h * latent.query + latent.query * a * (latent.plain + latent.rotary)
        key_value = h * (latent.key_value + latent.rotary)
        key_value += latent.key_value * a * (latent.plain + latent.value)
        return query + key_value + a * latent.value * h

    def output_parameters(self) -> int:
        """Of these, those of the projection after the scores."""
        return self.hidden * self.heads * (self.latent.value if self.latent else self.head)

    def key_value_width(self) -> int:
        """Numbers of a token's keys and values in a layer, as the scores take them."""
        if self.latent is None:
            return 2 * self.key_value_heads * self.head
        return self.heads * (self.latent.plain + self.latent.rotary + self.latent.value)

    def is_moe(self, layer: int) -> bool:
        """Whether a layer, counted from 0, has experts."""
        return self.experts is not None and layer >= self.dense_layers

    def expert_parameters(self) -> int:
        """Parameters of one expert; 0 for a dense model."""
        return self.experts.width * self.hidden * self._matrices() if self.experts else 0

    def shared_parameters(self, layer: int) -> int:
        """Parameters of a layer's feed-forward part that are no routed experts."""
        if not self.is_moe(layer):
            return self._matrices() * self.hidden * self.feed_forward
        assert self.experts is not None
        return self.experts.shared * self.expert_parameters() + self.hidden * self.experts.count

    def layer_parameters(self, layer: int, *, active: bool = False) -> int:
        """Parameters of a layer, or those that one token uses."""
        found = self.attention_parameters() + self.shared_parameters(layer)
        if self.is_moe(layer):
            assert self.experts is not None
            count = self.experts.routed if active else self.experts.count
            found += count * self.expert_parameters()
        return found

    def embedding_parameters(self) -> int:
        """Parameters of one embedding table."""
        return self.vocabulary * self.hidden

    def parameters(self, *, active: bool = False) -> int:
        """All parameters, or those that one token uses."""
        layers = sum(self.layer_parameters(layer, active=active) for layer in range(self.layers))
        return layers + self.embedding_parameters() * (1 if self.tied else 2)

    def attention_flops(self) -> int:
        """Operations of scores and values in a layer's forward pass, per token, with a causal mask."""
        width = self.latent.plain + self.latent.rotary + self.latent.value if self.latent else 2 * self.head
        return self.sequence * self.heads * width

    def flops_per_token(self) -> int:
        """Floating-point operations of a token, forward and backward, without recomputation."""
        matrices = sum(self.layer_parameters(layer, active=True) for layer in range(self.layers))
        forward = 2 * (matrices + self.embedding_parameters()) + self.layers * self.attention_flops()
        return 3 * forward

    def _matrices(self) -> int:
        return 3 if self.gated else 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """An accelerator: published peak, and what matrix products alone reach of it."""

    peak_tflops: float
    """BF16, dense."""
    reached_tflops: float
    """Measured for matrix products of BF16."""
    scale_up_gbytes: float
    """GB/s (10^9 bytes) that it sends within its scale-up domain, as realised."""
    domain: int = 8


GPUS: dict[str, Gpu] = {
    "a100": Gpu(312, 271, 230, 8),
    "h100": Gpu(989, 794.5, 370, 8),
    "b200": Gpu(2250, 1745, 900, 8),
    "gb200": Gpu(2500, 1822, 900, 72),
}
"""Peak: data sheets of NVIDIA. Matrix products: measured for BF16. Scale-up:
all-reduce as realised (A100, H100), data sheet (B200)."""

PRESETS: dict[str, Model] = {
    "gpt3-175b": Model(
        96, 12288, 49152, 96, 96, 128, 51200, 2048, gated=False, tied=True,
        source="GPT-3, arXiv 2005.14165; vocabulary padded as in Megatron-LM, arXiv 2104.04473",
    ),
    "llama3-8b": Model(
        32, 4096, 14336, 32, 8, 128, 128256, 8192, source="The Llama 3 herd of models, arXiv 2407.21783"
    ),
    "llama3-70b": Model(
        80, 8192, 28672, 64, 8, 128, 128256, 8192, source="The Llama 3 herd of models, arXiv 2407.21783"
    ),
    "llama3-405b": Model(
        126, 16384, 53248, 128, 8, 128, 128256, 8192, source="The Llama 3 herd of models, arXiv 2407.21783"
    ),
    "mixtral-8x7b": Model(
        32, 4096, 14336, 32, 8, 128, 32000, 4096, experts=Experts(8, 2, 14336),
        source="Mixtral of experts, arXiv 2401.04088",
    ),
    "mixtral-8x22b": Model(
        56, 6144, 16384, 48, 8, 128, 32768, 4096, experts=Experts(8, 2, 16384),
        source="config.json of Mixtral-8x22B-v0.1; sequence of the runs in Megatron-MoE-ModelZoo",
    ),
    "deepseek-v3": Model(
        61, 7168, 18432, 128, 128, 128, 129280, 4096, experts=Experts(256, 8, 2048, 1), dense_layers=3,
        latent=Latent(1536, 512, 128, 64, 128), ends=(1, 2),
        source="DeepSeek-V3, arXiv 2412.19437; without its prediction layer",
    ),
}  # fmt: skip
"""Published models by name."""


def preset(name: str) -> Model:
    """A published model.

    Raises:
        ArgumentError: if there is none of this name.
    """
    if name not in PRESETS:
        raise ArgumentError(f"model {name!r} is not known: {', '.join(PRESETS)}")
    return PRESETS[name]
