"""The decoder with fixed shapes, in the operators that onnxruntime's CoreML provider takes.

Same weights as `decoder.PrefillStep`, another order of work: no gather, no cast, no tensor of more than three axes.
Norm weights and 1 / sqrt(Dh) are folded into the products that follow them. Axis letters as in
`slm_runtime.static_graph`; G = H / Hkv.
"""

from collections.abc import Iterable
from typing import Any, cast

from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, ValueInfoProto, helper
from torch import Tensor, nn

from slm_export.coreml_norms import rms_norm
from slm_export.decoder import DecoderLayer, PrefillStep
from slm_export.onnx_export import pin_versions
from slm_export.onnx_stream import Constant, GraphWriter
from slm_runtime.static_graph import StaticGraphSpec

DATA_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


def build_static_graph(step: PrefillStep, spec: StaticGraphSpec) -> tuple[ModelProto, list[Constant]]:
    """The graph of `spec` without its constants, and these. Nothing of a weight's size is made yet."""
    builder = _Builder(spec)
    hidden = spec.hidden
    for index, layer in enumerate(step.layers):
        hidden = builder.layer(cast("DecoderLayer", layer), index, hidden)
    builder.writer.nodes[-1].output[0] = spec.hidden_out
    graph = helper.make_graph(
        builder.writer.nodes,
        "decoder",
        _values(spec, spec.input_names()),
        _values(spec, spec.output_names()),
    )
    model = helper.make_model(graph)
    pin_versions(model)
    return model, list(builder.writer.constants.values())


class _Builder:
    """Adds one layer after the other to a graph."""

    def __init__(self, spec: StaticGraphSpec) -> None:
        self.spec = spec
        self.writer = GraphWriter(DATA_TYPES[spec.precision])

    def layer(self, layer: DecoderLayer, index: int, hidden: str) -> str:
        """The states [S, D] after a layer."""
        writer, name = self.writer, f"layer_{index}"
        attended = self._attention(layer, index, self._norm(layer.attention_norm, hidden, f"{name}_attention_norm"))
        out = self._linear(f"{name}_attention_out", attended, layer.out)
        hidden = writer.node("Add", [hidden, out], f"{name}_middle")
        down = self._mlp(layer, name, self._norm(layer.mlp_norm, hidden, f"{name}_mlp_norm"))
        return writer.node("Add", [hidden, down], f"{name}_out")

    def _mlp(self, layer: DecoderLayer, name: str, normed: str) -> str:
        writer, columns = self.writer, _weight(layer.mlp_norm)
        gate = self._linear(f"{name}_gate", normed, layer.gate, columns=columns)
        up = self._linear(f"{name}_up", normed, layer.up, columns=columns)
        silu = writer.node("Mul", [gate, writer.node("Sigmoid", [gate], f"{name}_sigmoid")], f"{name}_silu")
        return self._linear(f"{name}_down", writer.node("Mul", [silu, up], f"{name}_gated"), layer.down)

    def _attention(self, layer: DecoderLayer, index: int, normed: str) -> str:
        """[S, H * Dh], before the output projection."""
        writer, spec, name = self.writer, self.spec, f"layer_{index}"
        heads, kv_heads, size, length = spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.num_tokens
        group_rows = heads // kv_heads * length
        query, key, value = self._projections(layer, index, normed)
        keys = writer.node("Concat", [f"past_key_{index}", key], f"{name}_keys", axis=1)
        values = writer.node("Concat", [f"past_value_{index}", value], f"{name}_values", axis=1)
        # The queries of one key head become the rows of one product: no key is repeated.
        rows = writer.reshape(query, (kv_heads, group_rows, size), f"{name}_query_rows")
        columns = writer.node("Transpose", [keys], f"{name}_key_columns", perm=[0, 2, 1])
        scores = writer.node("MatMul", [rows, columns], f"{name}_score_rows")
        scores = writer.reshape(scores, (heads, length, spec.total_len), f"{name}_scores")
        masked = writer.node("Add", [scores, spec.mask], f"{name}_masked_scores")
        weights = writer.node("Softmax", [masked], f"{name}_attention_weights", axis=-1)
        weights = writer.reshape(weights, (kv_heads, group_rows, spec.total_len), f"{name}_weight_rows")
        mixed = writer.node("MatMul", [weights, values], f"{name}_mixed_rows")
        mixed = writer.reshape(mixed, (heads, length, size), f"{name}_mixed")
        mixed = writer.node("Transpose", [mixed], f"{name}_mixed_tokens", perm=[1, 0, 2])
        return writer.reshape(mixed, (length, heads * size), f"{name}_attended")

    def _projections(self, layer: DecoderLayer, index: int, normed: str) -> tuple[str, str, str]:
        """Query [H, S, Dh], key and value [Hkv, S, Dh]; query and key rotated, the query times 1 / sqrt(Dh)."""
        spec, name = self.spec, f"layer_{index}"
        query_rows, key_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        query = self._heads(f"{name}_query", normed, layer, slice(0, query_rows), layer.q_norm, layer.scale)
        rows = slice(query_rows, query_rows + key_rows)
        key = self._heads(f"{name}_key", normed, layer, rows, layer.k_norm)
        value = self._heads(f"present_value_{index}", normed, layer, slice(rows.stop, rows.stop + key_rows))
        return self._rotated(query, f"{name}_rotated_query"), self._rotated(key, f"present_key_{index}"), value

    def _heads(
        self,
        output: str,
        normed: str,
        layer: DecoderLayer,
        rows: slice,
        norm: nn.Module | None = None,
        scale: float = 1.0,
    ) -> str:
        """[heads, S, Dh] from some rows of the layer's Q/K/V product, normalised head by head where there is a norm."""
        writer, spec = self.writer, self.spec
        heads = (rows.stop - rows.start) // spec.head_dim
        columns, row_scale = _weight(layer.attention_norm), scale if norm is None else 1.0
        product = self._linear(f"{output}_flat", normed, layer.qkv, rows=rows, columns=columns, scale=row_scale)
        split = writer.reshape(product, (spec.num_tokens, heads, spec.head_dim), f"{output}_tokens")
        if norm is None:
            return writer.node("Transpose", [split], output, perm=[1, 0, 2])
        turned = writer.node("Transpose", [split], f"{output}_raw", perm=[1, 0, 2])
        plain, weight = self._norm(norm, turned, f"{output}_normal"), _weight(norm)
        factors = writer.floats(f"{output}_factors", weight.shape, lambda: _folded(weight, None, scale))
        return writer.node("Mul", [plain, factors], output)

    def _rotated(self, states: str, output: str) -> str:
        """States [heads, S, Dh] turned by their tokens' angles: the halves change places, `sin` brings the sign."""
        writer, spec = self.writer, self.spec
        left, right = writer.halves(states, spec.head_dim)
        turned = writer.node("Concat", [right, left], f"{states}_turned", axis=-1)
        kept = writer.node("Mul", [states, spec.cos], f"{states}_times_cos")
        return writer.node("Add", [kept, writer.node("Mul", [turned, spec.sin], f"{states}_times_sin")], output)

    def _norm(self, norm: nn.Module, states: str, output: str) -> str:
        """`norm` without its weight."""
        return rms_norm(self.writer, states, output, cast("float", norm.variance_epsilon))

    def _linear(
        self,
        output: str,
        states: str,
        linear: nn.Linear,
        *,
        rows: slice = slice(None),
        columns: Tensor | None = None,
        scale: float = 1.0,
    ) -> str:
        """States [S, in] through some rows of a layer, `columns` [in] and `scale` folded into its weight."""
        writer, weight = self.writer, linear.weight.detach()[rows]
        inputs = [states, writer.floats(f"{output}_weight", weight.shape, lambda: _folded(weight, columns, scale))]
        if linear.bias is not None:
            bias = linear.bias.detach()[rows]
            inputs.append(writer.floats(f"{output}_bias", bias.shape, lambda: _folded(bias, None, scale)))
        # transB=1: onnxruntime's provider writes an untransposed weight into the model's text instead of its data.
        return self.writer.node("Gemm", inputs, output, transB=1)


def _folded(weight: Tensor, columns: Tensor | None, scale: float) -> NDArray[Any]:
    """Weight [out, in] or bias [out] times `columns` [in] and `scale`; in float64, only the last rounding counts."""
    wide = weight.double() * scale
    return (wide if columns is None else wide * columns.double()).numpy()


def _weight(norm: nn.Module) -> Tensor:
    return cast("Tensor", norm.weight).detach()


def _values(spec: StaticGraphSpec, names: Iterable[str]) -> list[ValueInfoProto]:
    shapes, data_type = spec.shapes(), DATA_TYPES[spec.precision]
    return [helper.make_tensor_value_info(name, data_type, shapes[name]) for name in names]
