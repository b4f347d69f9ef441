"""Decoder layers in fewer and larger operations.

transformers writes a layer as its paper has it: three products for queries, keys and values, two for the gate and what it
lets through, and a dozen operations for each norm and rotation. In a step of a few tokens each of them costs more to start than
to compute. `fuse_layers` replaces the layers of the families that share one layout (Llama, Mistral, Qwen2, Qwen3, Qwen3-VL)
by `FusedLayer`, which computes the same; every other model keeps its own.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from triton_renderer.packed_linear import PackedLinear
from triton_renderer.prefill_decode.kv_cache import PagedKVCache, StepLayout, attend

_FAMILIES = frozenset(
    {"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "Qwen3VLTextDecoderLayer"}
)
Rows = tuple[Tensor, Tensor]
"""Which of a step's tokens take a row of the encoder, [rows] int64 ascending, and the rows, [1 + deepstack, rows, hidden]."""

_MODELS = frozenset({"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "Qwen3VLTextModel"})
_PARTS = frozenset(
    {"self_attn", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp", "mlp.gate_proj"}
    | {"mlp.up_proj", "mlp.down_proj", "mlp.act_fn", "input_layernorm", "post_attention_layernorm"}
)
_NO_NORM, _NO_EPS = np.empty((0, 0), np.float32), np.float32(0)
_HEAD_NORMS = frozenset({"self_attn.q_norm", "self_attn.k_norm"})


class FusedLayer(nn.Module):
    """norm → queries, keys, values → rotation → attention → output + input; norm → gated MLP + input."""

    def __init__(self, layer: nn.Module) -> None:
        """`layer`: one that `is_fusible`; its weights are copied."""
        super().__init__()
        attention: Any = layer.self_attn
        mlp: Any = layer.mlp
        self.layer_idx: int = attention.layer_idx
        self._scaling: float = attention.scaling
        self._head_size: int = attention.head_dim
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self._num_keys = attention.k_proj.out_features // self._head_size
        self._num_rotated = attention.q_proj.out_features // self._head_size + self._num_keys
        self._num_queries = self._num_rotated - self._num_keys
        self._out = _linear(attention.o_proj)
        self._gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self._down = _linear(mlp.down_proj)
        self._activation = mlp.act_fn
        self._attention_norm = _Norm.of(layer.input_layernorm)
        self._mlp_norm = _Norm.of(layer.post_attention_layernorm)
        self._head_norm = _Norm.of_heads(attention, self._num_queries, self._num_keys)
        self._is_compilable = isinstance(mlp.act_fn, nn.SiLU | SiLUActivation)

    def forward(
        self,
        hidden_states: Tensor,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        past_key_values: PagedKVCache,
        layout: StepLayout,
        **kwargs: Any,
    ) -> Tensor:
        """hidden_states: [1, tokens, hidden], the cosines and sines [1, tokens, head size]; returns [1, tokens, hidden]."""
        if layout.kernels and self._is_compilable:
            return self._forward_compiled(hidden_states[0], position_embeddings, past_key_values, layout).unsqueeze(0)
        tokens = hidden_states.shape[1]
        heads = self._qkv(self._attention_norm(hidden_states)).view(1, tokens, -1, self._head_size)
        rotated = heads[:, :, : self._num_rotated]
        if self._head_norm is not None:
            rotated = self._head_norm(rotated)
        rotated = _rotate(rotated, *position_embeddings).transpose(1, 2)
        values = heads[:, :, self._num_rotated :].transpose(1, 2)
        keys, values = past_key_values.update(rotated[:, self._num_queries :], values, self.layer_idx)
        queries = rotated[:, : self._num_queries]
        attended, _ = attend(self, queries, keys, values, None, layout=layout, scaling=self._scaling)
        hidden_states = self._out(attended.reshape(1, tokens, -1), hidden_states)
        gate, up = self._gate_up(self._mlp_norm(hidden_states)).chunk(2, dim=-1)
        out: Tensor = self._down(self._activation(gate).mul_(up), hidden_states)
        return out

    def _forward_compiled(
        self, x: Tensor, position_embeddings: tuple[Tensor, Tensor], cache: PagedKVCache, layout: StepLayout
    ) -> Tensor:
        """The same in the kernels of `cpu_kernels`; x: [tokens, hidden]."""
        kernels = layout.kernels
        heads = self._qkv(self._attention_norm.compiled(x, kernels)).view(x.shape[0], -1, self._head_size)
        pools = cache.layers[self.layer_idx]
        cosines, sines = (part[0].contiguous().numpy() for part in position_embeddings)
        norms, eps = (_NO_NORM, _NO_EPS) if self._head_norm is None else self._head_norm.arrays
        slots = layout.slots.numpy()
        kernels.rotate_and_store(heads.numpy(), cosines, sines, norms, eps, slots, pools.keys.numpy(), pools.values.numpy())
        queries = heads[:, : self._num_queries].transpose(0, 1).unsqueeze(0)
        attended, _ = attend(self, queries, pools.keys, pools.values, None, layout=layout, scaling=self._scaling)
        x = self._out(attended.reshape(x.shape[0], -1), x)
        gate_up = self._gate_up(self._mlp_norm.compiled(x, kernels))
        gated = gate_up.new_empty(x.shape[0], gate_up.shape[1] // 2)
        kernels.silu_gate(gate_up.numpy(), gated.numpy())
        out: Tensor = self._down(gated, x)
        return out


class FusedModel:
    """A language model of fused layers.

    What transformers does around the layers for every model (masks, outputs, checks) takes as long as two layers of a small one.
    """

    def __init__(self, text: Any, head: Any) -> None:
        """`text`: the model without its head, whose layers are fused."""
        self._embed, self._rotary, self._head = text.embed_tokens, text.rotary_emb, head
        self._layers: list[FusedLayer] = list(text.layers)
        self._norm = _Norm.of(text.norm)

    @classmethod
    def of(cls, model: Any) -> "FusedModel | None":
        """None where the model is not one of those whose decoder layers can be fused, or one of its layers is not."""
        text = getattr(model.base_model, "language_model", model.base_model)
        is_known = type(text).__name__ in _MODELS and all(isinstance(layer, FusedLayer) for layer in text.layers)
        return cls(text, model.lm_head) if is_known else None

    def __call__(
        self,
        token_ids: Tensor,
        positions: Tensor,
        wanted: Tensor | None,
        cache: PagedKVCache,
        layout: StepLayout,
        *,
        rows: Rows | None = None,
    ) -> Tensor:
        """Logits [wanted, vocabulary] of a step, of all tokens where `wanted` is None.

        token_ids: [1, tokens]; positions: [1, tokens], or [3, 1, tokens] of M-RoPE. Rows take the place of their tokens'
        embeddings; those for DeepStack are added behind the first layers.
        """
        x = self._embed(token_ids)
        embeddings = self._rotary(x, positions)
        if rows is not None:
            x[0].index_copy_(0, rows[0], rows[1][0])
        for index, layer in enumerate(self._layers):
            x = layer(x, position_embeddings=embeddings, past_key_values=cache, layout=layout)
            if rows is not None and index + 1 < len(rows[1]):
                x[0].index_add_(0, rows[0], rows[1][index + 1])
        kept = x[0] if wanted is None else x[0].index_select(0, wanted)
        logits: Tensor = self._head(self._norm.compiled(kept, layout.kernels) if layout.kernels else self._norm(kept))
        return logits


class _Norm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight, over the last dimension; computed in float32, as transformers does."""

    _weight: Tensor

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.register_buffer("_weight", weight.detach(), persistent=False)
        self._eps, self._scale = eps, 1 / weight.shape[-1]

    @classmethod
    def of(cls, norm: Any) -> "_Norm":
        return cls(norm.weight, norm.variance_epsilon)

    @classmethod
    def of_heads(cls, attention: Any, num_queries: int, num_keys: int) -> "_Norm | None":
        """The norm of each query's and each key's head at once; None where the family has none."""
        if not hasattr(attention, "q_norm"):
            return None
        weights = [
            norm.weight.expand(heads, -1) for norm, heads in ((attention.q_norm, num_queries), (attention.k_norm, num_keys))
        ]
        return cls(torch.cat(weights), attention.q_norm.variance_epsilon)

    @property
    def arrays(self) -> tuple[npt.NDArray[np.float32], np.float32]:
        """The weight and eps, for a kernel."""
        return self._weight.numpy(), np.float32(self._eps)

    def compiled(self, x: Tensor, kernels: Any) -> Tensor:
        """As `forward`, of x [tokens, size], in a kernel of `cpu_kernels`."""
        out = torch.empty_like(x)
        kernels.normalize(x.numpy(), *self.arrays, out.numpy())
        return out

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = length.square_().mul_(self._scale).add_(self._eps).rsqrt_()
        out: Tensor = (wide * inverse).to(x.dtype).mul_(self._weight)
        return out


class _Linear(nn.Module):
    """x · weightᵀ + bias, and, where it is given, + residual."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        out: Tensor = self._linear(x)
        return out if residual is None else out.add_(residual)


def _linear(linear: nn.Linear) -> nn.Module:
    return PackedLinear.of(linear) if PackedLinear.can_pack(linear) else _Linear(linear)


def _joined(*linears: nn.Linear) -> nn.Module:
    """One layer with the outputs of all, side by side."""
    first = linears[0]
    with torch.device("meta"):
        joined = nn.Linear(first.in_features, sum(linear.out_features for linear in linears), bias=first.bias is not None)
    joined.weight = nn.Parameter(torch.cat([linear.weight.detach() for linear in linears]), requires_grad=False)
    if first.bias is not None:
        joined.bias = nn.Parameter(torch.cat([linear.bias.detach() for linear in linears]), requires_grad=False)
    return _linear(joined)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [1, tokens, heads, size]: the halves of a head are the parts of size / 2 complex numbers."""
    half = x.shape[-1] // 2
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


def is_fusible(layer: nn.Module) -> bool:
    """The layer is of a family that is known, and has the parts that were known of it."""
    parts = {name for name, _ in layer.named_modules() if name}
    return type(layer).__name__ in _FAMILIES and parts - _HEAD_NORMS == _PARTS and not layer.training


@torch.inference_mode()
def fuse_layers(model: nn.Module) -> int:
    """Replaces the decoder layers of a model where they can be, and returns how many. They then work with a PagedKVCache only."""
    found = [(owner, name, child) for owner in model.modules() for name, child in owner.named_children() if is_fusible(child)]
    for owner, name, layer in found:
        setattr(owner, name, FusedLayer(layer))
    return len(found)
