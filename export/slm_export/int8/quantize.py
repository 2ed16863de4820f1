"""A prefill step in float becomes one in integers, layer by layer, on the calibration prompts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from slm_export.decoder import DecoderLayer, PrefillStep, pad_queries, rms_norm
from slm_export.int8.exact_mean import ExactMean
from slm_export.int8.linear import QuantizedLinear
from slm_export.int8.rotation import MAX_BLOCK, RotatedNorm, hadamard, mix_columns, power_of_two_in, rotate
from slm_export.int8.rounding import round_weight

Say = Callable[[str], None]
BATCH_PROMPTS = 8
MASKED = torch.finfo(torch.float32).min


@dataclass
class Batch:
    """Prompts of about the same length, padded at the right. `hidden` moves on from layer to layer.

    Shapes: `hidden` [B, S, D], `real` [B, S] (False for padding), `position_ids` [B, S], `bias` [B, 1, S', S].
    """

    hidden: Tensor
    real: Tensor
    position_ids: Tensor
    bias: Tensor

    @property
    def last(self) -> Tensor:
        """States of every prompt's last token [B, D]."""
        return self.hidden[torch.arange(len(self.hidden)), self.real.sum(1) - 1]


def quantize_step(step: PrefillStep, embedding: Tensor, prompts: Sequence[Sequence[int]], *, say: Say) -> None:
    """Rotate `step` and put integer products in the place of its float ones, in place.

    `embedding` [V, D] holds the token embeddings. Every layer is rounded on what the integer layers before it give;
    the mean difference that remains at the end of the prompts is taken off in the final norm's bias.
    """
    with torch.no_grad():
        expected = _last_hidden(step, embedding, prompts)
        rotate(step)
        batches = list(_batches(step, embedding, prompts))
        for number, module in enumerate(step.layers, start=1):
            _quantize_layer(step, cast("DecoderLayer", module), batches)
            if number % 8 == 0 or number == len(step.layers):
                say(f"int8: {number} of {len(step.layers)} layers rounded")
        leave = cast("RotatedNorm", step.leave)
        shift = (torch.cat([leave(batch.last) for batch in batches]) - expected).mean(0)
        leave.back.bias.sub_(shift)


def _last_hidden(step: PrefillStep, embedding: Tensor, prompts: Sequence[Sequence[int]]) -> Tensor:
    """What the float step gives for the last token of every prompt [prompts, D], in the order of `_batches`."""
    finished = []
    for batch in _batches(step, embedding, prompts):
        for module in step.layers:
            layer = cast("DecoderLayer", module)
            batch.hidden = layer.finish(batch.hidden, _attend(step, layer, batch))
        finished.append(step.leave(batch.last))
    return torch.cat(finished)


def _batches(step: PrefillStep, embedding: Tensor, prompts: Sequence[Sequence[int]]) -> Iterator[Batch]:
    ordered = sorted(prompts, key=len)
    for start in range(0, len(ordered), BATCH_PROMPTS):
        chunk = ordered[start : start + BATCH_PROMPTS]
        length = len(chunk[-1])
        token_ids = torch.tensor([[*prompt, *[0] * (length - len(prompt))] for prompt in chunk])
        real = torch.arange(length) < torch.tensor([[len(prompt)] for prompt in chunk])
        later = torch.full((length, length), MASKED).triu(1)
        yield Batch(
            hidden=step.enter(embedding[token_ids].float()),
            real=real,
            position_ids=torch.arange(length).expand(len(chunk), -1),
            bias=pad_queries(later.expand(len(chunk), 1, -1, -1)),
        )


def _attend(step: PrefillStep, layer: DecoderLayer, batch: Batch) -> Tensor:
    arch = step.arch
    empty = torch.zeros(1, arch.num_kv_heads, 0, arch.head_dim)
    attended, _ = layer.attend(batch.hidden, (batch.position_ids, step.cos, step.sin), batch.bias, (empty, empty))
    return attended


def _quantize_layer(step: PrefillStep, layer: DecoderLayer, batches: Sequence[Batch]) -> None:
    """Round the products of `layer` in the order of the work, and move the batches on through it."""
    _quantize(layer, ["qkv"], [rms_norm(layer.attention_norm, batch.hidden)[batch.real] for batch in batches])
    first_value = (layer.arch.num_heads + layer.arch.num_kv_heads) * layer.arch.head_dim
    projected = [layer.qkv(rms_norm(layer.attention_norm, batch.hidden))[batch.real] for batch in batches]
    layer.mean = ExactMean(max(float(states[:, first_value:].abs().max()) for states in projected))
    attended = [_attend(step, layer, batch) for batch in batches]
    _quantize(layer, ["out"], [states[batch.real] for states, batch in zip(attended, batches, strict=True)])
    hidden = [batch.hidden + layer.out(states) for states, batch in zip(attended, batches, strict=True)]
    normed = [rms_norm(layer.mlp_norm, states) for states in hidden]
    _quantize(layer, ["gate", "up"], [states[batch.real] for states, batch in zip(normed, batches, strict=True)])
    products = [nn.functional.silu(layer.gate(states)) * layer.up(states) for states in normed]
    mix = hadamard(min(power_of_two_in(layer.down.in_features), MAX_BLOCK)).float()
    _quantize(layer, ["down"], [states[batch.real] for states, batch in zip(products, batches, strict=True)], mix)
    for batch, before, states in zip(batches, hidden, products, strict=True):
        batch.hidden = before + layer.down(states)


def _quantize(layer: DecoderLayer, names: Sequence[str], inputs: Sequence[Tensor], mix: Tensor | None = None) -> None:
    """Put integers in the place of the linear layers `names`, rounded for the `inputs` that they share [tokens, K]."""
    linears = [cast("nn.Linear", getattr(layer, name)) for name in names]
    weight = torch.cat([linear.weight for linear in linears])
    if mix is not None:
        weight, inputs = mix_columns(weight, mix), [mix_columns(states, mix) for states in inputs]
    gram = torch.zeros(weight.shape[1], weight.shape[1])
    for states in inputs:
        gram += states.T @ states
    sizes = [linear.out_features for linear in linears]
    rounded, scale = (part.split(sizes) for part in round_weight(weight, gram))
    for name, linear, integers, step in zip(names, linears, rounded, scale, strict=True):
        setattr(layer, name, QuantizedLinear(integers, step, linear.bias, mix))
