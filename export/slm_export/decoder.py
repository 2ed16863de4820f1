"""The module that is exported: one prefill step of a decoder, written for few and large matrix products.

It reads the weights of a transformers model but not its forward, so the reference (`reference.py`) shares no code with
it. Against that forward it changes the order of the work only: Q, K and V are one product, grouped queries are folded
into the rows of their key head instead of repeating K and V, and after the last layer's attention only the scored
positions go on. Axis letters as in `slm_runtime.manifest`; G = H / Hkv.
"""

from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from slm_export.families import Architecture, read_architecture

KeyValue = tuple[Tensor, Tensor]
# A token sees none behind it, so a block of queries needs only the keys up to its end: 9/16 of the scores with 8.
QUERY_BLOCKS = 8


class RotaryEmbedding(torch.autograd.Function):
    """Rotates [B, S, heads * Dh] by position; exported as onnxruntime's own operator.

    Source: com.microsoft.RotaryEmbedding, non-interleaved, in onnxruntime's ContribOperators.md.
    """

    @staticmethod
    def symbolic(g: Any, states: Any, position_ids: Any, cos: Any, sin: Any) -> Any:
        return g.op("com.microsoft::RotaryEmbedding", states, position_ids, cos, sin).setType(states.type())

    @staticmethod
    def forward(ctx: Any, states: Tensor, position_ids: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # noqa: ARG004
        half = cos.shape[-1]
        heads = states.unflatten(-1, (-1, 2, half))
        cos, sin = cos[position_ids].unsqueeze(2), sin[position_ids].unsqueeze(2)
        left, right = heads[..., 0, :], heads[..., 1, :]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).flatten(-2)


def rms_norm(norm: nn.Module, states: Tensor) -> Tensor:
    """`norm` applied in the form that onnxruntime fuses into one operator (SimplifiedLayerNormalization)."""
    epsilon = cast("float", norm.variance_epsilon)
    return states / torch.sqrt(states.pow(2).mean(-1, keepdim=True) + epsilon) * cast("Tensor", norm.weight)


def fused_linear(*parts: nn.Linear) -> nn.Linear:
    """One linear layer whose output is the concatenation of the parts' outputs."""
    fused = nn.Linear(parts[0].in_features, sum(p.out_features for p in parts), bias=parts[0].bias is not None)
    fused.weight = nn.Parameter(torch.cat([p.weight for p in parts]), requires_grad=False)
    if parts[0].bias is not None:
        fused.bias = nn.Parameter(torch.cat([p.bias for p in parts]), requires_grad=False)
    return fused


def pad_queries(states: Tensor) -> Tensor:
    """`states` [..., S, X] with enough zero rows for every block of queries to hold one."""
    return nn.functional.pad(states, (0, 0, 0, QUERY_BLOCKS - 1))


def query_blocks(bias: Tensor, past_len: int) -> list[tuple[int, int, int, Tensor]]:
    """(start, stop, number of keys in sight, bias of the block) for every block of a padded bias [B, 1, S', T]."""
    length = bias.shape[2]
    bounds = [length * block // QUERY_BLOCKS for block in range(QUERY_BLOCKS + 1)]
    return [
        (start, stop, past_len + stop, bias[:, :, start:stop, : past_len + stop]) for start, stop in pairwise(bounds)
    ]


class SoftmaxMean(nn.Module):
    """The mean of values, weighted by the softmax of scores."""

    def prepare(self, values: Tensor) -> Tensor:
        """New values as they are to be kept."""
        return values

    def forward(self, scores: Tensor, values: Tensor) -> Tensor:
        """[B, Hkv, G * S', Dh] from `scores` [B, H, S', T] and prepared `values` [B, Hkv, T, Dh]."""
        return fold_queries(scores.softmax(-1), values) @ values


def fold_queries(weights: Tensor, values: Tensor) -> Tensor:
    """`weights` [B, H, S', T] with the queries of one key head as rows, [B, Hkv, G * S', T]."""
    return weights.view(weights.shape[0], values.shape[1], -1, values.shape[2])


class DecoderLayer(nn.Module):
    """One transformer layer around the weights of transformers' own layer."""

    def __init__(self, layer: nn.Module, arch: Architecture) -> None:
        super().__init__()
        source = cast("Any", layer)
        attention = source.self_attn
        self.arch = arch
        self.qkv = fused_linear(attention.q_proj, attention.k_proj, attention.v_proj)
        self.q_norm = getattr(attention, "q_norm", None)
        self.k_norm = getattr(attention, "k_norm", None)
        self.out = attention.o_proj
        self.scale = float(attention.scaling)
        self.mean: SoftmaxMean = SoftmaxMean()
        self.attention_norm, self.mlp_norm = source.input_layernorm, source.post_attention_layernorm
        self.gate, self.up, self.down = source.mlp.gate_proj, source.mlp.up_proj, source.mlp.down_proj

    def attend(
        self, hidden: Tensor, rotary: tuple[Tensor, ...], bias: Tensor, past: KeyValue
    ) -> tuple[Tensor, KeyValue]:
        """Attention output [B, S, H * Dh] before its projection, and the new tokens' keys and values."""
        arch = self.arch
        heads, kv_heads, head_dim = arch.num_heads, arch.num_kv_heads, arch.head_dim
        batch, length, _ = hidden.shape
        sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
        queries, keys, values = self.qkv(rms_norm(self.attention_norm, hidden)).split(sizes, dim=-1)
        queries = RotaryEmbedding.apply(self._head_norm(self.q_norm, queries), *rotary)
        keys = RotaryEmbedding.apply(self._head_norm(self.k_norm, keys), *rotary)
        values = self.mean.prepare(values)
        # [B, S, Hkv, G, Dh] -> [B, Hkv, G, S, Dh]: the queries of one key head become the rows of one product
        queries = queries.view(batch, length, kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
        present = tuple(t.view(batch, length, kv_heads, head_dim).transpose(1, 2) for t in (keys, values))
        all_keys, all_values = (
            torch.cat((old.expand(batch, -1, -1, -1), new), dim=2) for old, new in zip(past, present, strict=True)
        )
        queries = pad_queries(queries)
        mixed = [
            self._attend_block(queries[:, :, :, start:stop], all_keys[:, :, :seen], all_values[:, :, :seen], part)
            for start, stop, seen, part in query_blocks(bias, past[0].shape[2])
        ]
        attended = torch.cat(mixed, dim=3)[:, :, :, :length].permute(0, 3, 1, 2, 4)
        return attended.reshape(batch, length, heads * head_dim), cast("KeyValue", present)

    def _attend_block(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Attention output [B, Hkv, G, S', Dh] of the queries [B, Hkv, G, S', Dh] over the keys that they may see."""
        batch, kv_heads, _, length, head_dim = queries.shape
        rows = queries.reshape(batch, kv_heads, -1, head_dim)
        # onnxruntime fuses transpose, product and scale into one operator when they stand together
        scores = (rows @ keys.transpose(2, 3) * self.scale).view(batch, self.arch.num_heads, length, -1) + bias
        return self.mean(scores, values).view(batch, kv_heads, -1, length, head_dim)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer's output for residual `hidden` and attention output `attended`, any leading axes."""
        hidden = hidden + self.out(attended)
        normed = rms_norm(self.mlp_norm, hidden)
        gate = self.gate(normed)
        return hidden + self.down(gate * torch.sigmoid(gate) * self.up(normed))

    def _head_norm(self, norm: nn.Module | None, states: Tensor) -> Tensor:
        """Qwen3 normalises every head of Q and K by itself; other families have no such norm."""
        if norm is None:
            return states
        return rms_norm(norm, states.unflatten(-1, (-1, self.arch.head_dim))).flatten(-2)


class FinalNorm(nn.Module):
    """`rms_norm` as a module."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, hidden: Tensor) -> Tensor:
        return rms_norm(self.norm, hidden)


class PrefillStep(nn.Module):
    """The graph of `GraphSpec` as a module around the weights of a transformers causal LM."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        source = cast("Any", model)
        self.config = source.config
        self.arch = read_architecture(self.config)
        self.layers = nn.ModuleList(DecoderLayer(layer, self.arch) for layer in source.model.layers)
        self.norm = source.model.norm
        # where another basis is entered and left (int8.rotation)
        self.enter: nn.Module = nn.Identity()
        self.leave: nn.Module = FinalNorm(self.norm)
        rotary = source.model.rotary_emb
        self.inverse_frequencies: Tensor = rotary.inv_freq.float()
        self.rope_scaling = float(rotary.attention_scaling)
        angles = torch.arange(self.arch.max_positions).float()[:, None] * self.inverse_frequencies[None, :]
        self.cos = nn.Buffer(angles.cos() * self.rope_scaling)
        self.sin = nn.Buffer(angles.sin() * self.rope_scaling)

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        attention_bias: Tensor,
        score_index: Tensor,
        past_key_values: list[KeyValue],
    ) -> tuple[Tensor, ...]:
        """`last_hidden` [N, D], then the presents in the order of `GraphSpec.present_names`."""
        hidden, attention_bias = self.enter(inputs_embeds), pad_queries(attention_bias)
        rotary = (position_ids, self.cos, self.sin)
        presents: list[Tensor] = []
        for index, module in enumerate(self.layers):
            layer = cast("DecoderLayer", module)
            attended, present = layer.attend(hidden, rotary, attention_bias, past_key_values[index])
            presents += present
            if index == len(self.layers) - 1:
                hidden, attended = hidden.flatten(0, 1)[score_index], attended.flatten(0, 1)[score_index]
            hidden = layer.finish(hidden, attended)
        return (self.leave(hidden), *presents)
