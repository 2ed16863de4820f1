"""The decoder's weight products without anything else: the speed that a decoder can at best approach."""

from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from slm_export.onnx_export import pin_versions
from slm_runtime.manifest import GraphSpec, RooflineSpec


def write_roofline(spec: RooflineSpec, decoder: GraphSpec, folder: Path) -> str:
    """Write a chain of all products of the decoder in `folder` with its weights, in an order in which shapes fit.

    The weights are references into the decoder's data file. Of the last layer only the first product is there: the
    decoder computes the others for scored positions only.
    """
    weights = list(_product_weights(onnx.load(folder / decoder.file, load_external_data=False)))
    per_layer = len(weights) // decoder.num_layers
    assert per_layer * decoder.num_layers == len(weights)
    layers = [weights[i : i + per_layer] for i in range(0, len(weights), per_layer)]
    chain = [weight for layer in layers[:-1] for weight in _fitting_order(layer)] + layers[-1][:1]
    nodes = list(_chain_nodes(spec, decoder, chain))
    used = {name for node in nodes for name in node.input}
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "roofline",
            [helper.make_tensor_value_info(spec.states, TensorProto.FLOAT, ["M", decoder.hidden_size])],
            [helper.make_tensor_value_info(spec.result, TensorProto.FLOAT, ["M", None])],
            [*chain, *(bound for bound in _slice_bounds(decoder) if bound.name in used)],
        )
    )
    pin_versions(model)
    onnx.save(model, folder / spec.file)
    return spec.file


def _product_weights(model: ModelProto) -> Iterator[TensorProto]:
    """The constant matrices of the graph's products, in the graph's order: Q/K/V, output, gate, up, down per layer."""
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in initializers:
            yield initializers[node.input[1]]


def _fitting_order(layer: list[TensorProto]) -> list[TensorProto]:
    qkv, out, gate, up, down = layer
    return [gate, down, qkv, out, up]


def _slice_bounds(decoder: GraphSpec) -> list[TensorProto]:
    values = {"zero": 0, "hidden": decoder.hidden_size, "attended": decoder.num_heads * decoder.head_dim, "axis": 1}
    return [helper.make_tensor(name, TensorProto.INT64, [1], [value]) for name, value in values.items()]


def _chain_nodes(spec: RooflineSpec, decoder: GraphSpec, chain: list[TensorProto]) -> Iterator[NodeProto]:
    """Products, and a cut to the next one's width where one is wider than that."""
    states, width = spec.states, decoder.hidden_size
    for number, weight in enumerate(chain):
        needed, given = weight.dims
        if needed != width:
            bound = "hidden" if needed == decoder.hidden_size else "attended"
            yield helper.make_node("Slice", [states, "zero", bound, "axis"], [f"cut_{number}"])
            states = f"cut_{number}"
        result = spec.result if number == len(chain) - 1 else f"product_{number}"
        yield helper.make_node("MatMul", [states, weight.name], [result])
        states, width = result, given
