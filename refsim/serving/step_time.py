"""How long a step takes: a roofline of the model's kernels from plain numbers, or a straight line."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from refsim.serving.scheduler import Step


class StepTime(Protocol):
    """Seconds for a step; whatever has this method drives a replay."""

    def seconds(self, step: Step) -> float:
        """The time between the start of the step and its tokens."""


@dataclass(frozen=True)
class Linear:
    """`base_s` a step, plus a time for each new token and each token of context that decodes read.

    >>> from refsim.serving.scheduler import Step
    >>> Linear(0.01, 1e-4, 1e-6).seconds(Step(decodes=10, decode_context=5000, chunks=[(90, 0)]))
    0.025
    """

    base_s: float = 0.012
    per_token_s: float = 6e-5
    per_context_s: float = 1.2e-7

    def __post_init__(self) -> None:
        if not (self.base_s >= 0 and self.per_token_s >= 0 and self.per_context_s >= 0):
            raise ValueError(f"{self}: no step takes less than no time; expected 0 or more each")

    def seconds(self, step: Step) -> float:
        """A straight line in the step's tokens."""
        return self.base_s + self.per_token_s * step.tokens + self.per_context_s * step.decode_context


@dataclass(frozen=True)
class DecoderShape:
    """What a decoder's step must read and multiply. Parameters are counts; `itemsize` is bytes of a weight or K, V.

    `body_params` are the matrices of all layers, `head_params` the output projection; embeddings are only looked up.
    """

    body_params: float
    head_params: float
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    itemsize: int = 2

    @property
    def kv_token_nbytes(self) -> int:
        """K and V of a token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.itemsize


def llama_shape(
    hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocab: int, head_dim: int | None = None
) -> DecoderShape:
    """The counts of a Llama-style decoder: four attention matrices, three of a gated MLP, an output projection.

    >>> llama_shape(4096, 32, 32, 8, 14336, 128256).kv_token_nbytes
    131072
    """
    dim = hidden // heads if head_dim is None else head_dim
    body = layers * (hidden * dim * (2 * heads + 2 * kv_heads) + 3 * hidden * mlp)
    return DecoderShape(body, hidden * vocab, layers, heads, kv_heads, dim, vocab)


LLAMA_3_1_8B = llama_shape(4096, 32, 32, 8, 14336, 128256)
OPT_13B = DecoderShape(40 * 12 * 5120**2, 5120 * 50272, 40, 40, 40, 128, 50272)


@dataclass(frozen=True)
class Roofline:
    """The kernels of a step one after another, each bound by memory or by arithmetic.

    Weights are read once a step; decodes read their contexts; chunks attend to what is before them. `memory_nbytes_s`
    and `flops_s` are the device's peaks; `memory_efficiency` and `flops_efficiency` are what a run is calibrated with.
    `kernel_s` is the gap between dependent kernels, of which there are `kernels_per_layer`. What comes back from a host
    tier crosses a link of `host_nbytes_s` before the step; what goes there does so meanwhile, and costs nothing here.
    """

    shape: DecoderShape
    memory_nbytes_s: float
    flops_s: float
    memory_efficiency: float = 0.9
    flops_efficiency: float = 0.9
    kernel_s: float = 0.0
    kernels_per_layer: int = 9
    host_nbytes_s: float = 55e9

    def __post_init__(self) -> None:
        if not (self.memory_nbytes_s > 0 and self.flops_s > 0):
            raise ValueError(f"peaks are {self.memory_nbytes_s} B/s and {self.flops_s} FLOP/s; both must be above 0")
        if not (0 < self.memory_efficiency <= 1 and 0 < self.flops_efficiency <= 1):
            raise ValueError(
                f"efficiencies are {self.memory_efficiency} and {self.flops_efficiency}; expected above 0, at most 1"
            )
        if not (self.kernel_s >= 0 and self.kernels_per_layer >= 0 and self.host_nbytes_s > 0):
            raise ValueError(
                f"gaps of {self.kernel_s} s at {self.kernels_per_layer} kernels a layer and a link of "
                f"{self.host_nbytes_s} B/s; expected 0 or more, and a link above 0"
            )

    def seconds(self, step: Step) -> float:
        """Linear layers, output projection with sampling, decode attention, chunk attention, gaps."""
        shape = self.shape
        bandwidth = self.memory_nbytes_s * self.memory_efficiency
        flops = self.flops_s * self.flops_efficiency
        linear = max(shape.body_params * shape.itemsize / bandwidth, 2 * shape.body_params * step.tokens / flops)
        head = max(shape.head_params * shape.itemsize / bandwidth, 2 * shape.head_params * step.sampled / flops)
        sampling = _SAMPLING_PASSES * 4 * shape.vocab * step.sampled / bandwidth
        attention = step.decode_context * shape.kv_token_nbytes / bandwidth
        for count, before in step.chunks:
            pairs = count * before + count * (count + 1) / 2
            matrix = 4 * shape.layers * shape.heads * shape.head_dim * pairs / flops
            attention += max(matrix, (count + before) * shape.kv_token_nbytes / bandwidth)
        gaps = self.kernel_s * self.kernels_per_layer * shape.layers
        loads = step.loaded_tokens * shape.kv_token_nbytes / self.host_nbytes_s
        return linear + head + sampling + attention + gaps + loads

    def on(self, memory_nbytes_s: float, flops_s: float) -> Roofline:
        """The same settings on another device: only its peaks change."""
        return replace(self, memory_nbytes_s=memory_nbytes_s, flops_s=flops_s)


# The float32 logits of a row are written, normalised and searched.
_SAMPLING_PASSES = 4
