"""RMS norms in CoreML's operators, without their weights: x / sqrt(mean(x * x) + epsilon) over the last axis."""

import math

from onnx import TensorProto

from slm_export.onnx_stream import GraphWriter


def rms_norm(writer: GraphWriter, states: str, output: str, epsilon: float) -> str:
    """The norm in the form that suits the graph's precision."""
    if writer.data_type == TensorProto.FLOAT16:
        return scaled_rms_norm(writer, states, output, epsilon)
    return plain_rms_norm(writer, states, output, epsilon)


def plain_rms_norm(writer: GraphWriter, states: str, output: str, epsilon: float) -> str:
    squares = writer.node("Mul", [states, states], f"{output}_squares")
    mean = writer.node("ReduceMean", [squares], f"{output}_mean", axes=[-1], keepdims=1)
    padded = writer.node("Add", [mean, writer.number("norm_epsilon", epsilon)], f"{output}_padded")
    return writer.node("Div", [states, writer.node("Sqrt", [padded], f"{output}_root")], output)


def scaled_rms_norm(writer: GraphWriter, states: str, output: str, epsilon: float) -> str:
    """The same for float16, where x * x overflows above 255: squares are taken of x / unit, unit = max(|x|, sqrt(eps)).

    Every tensor but x itself stays between 0 and max(|x|), whatever a device computes inside of its operators.
    """
    root_epsilon = writer.number("norm_root_epsilon", math.sqrt(epsilon))
    negative = writer.node("Mul", [states, writer.number("minus_one", -1.0)], f"{output}_negative")
    sizes = writer.node("Max", [states, negative], f"{output}_sizes")
    largest = writer.node("ReduceMax", [sizes], f"{output}_largest", axes=[-1], keepdims=1)
    unit = writer.node("Max", [largest, root_epsilon], f"{output}_unit")
    small = writer.node("Div", [states, unit], f"{output}_small")
    squares = writer.node("Mul", [small, small], f"{output}_squares")
    mean = writer.node("ReduceMean", [squares], f"{output}_mean", axes=[-1], keepdims=1)
    floor = writer.node("Div", [root_epsilon, unit], f"{output}_floor")
    padded = writer.node(
        "Add", [mean, writer.node("Mul", [floor, floor], f"{output}_floor_square")], f"{output}_padded"
    )
    root = writer.node("Sqrt", [padded], f"{output}_root")
    return writer.node("Div", [states, writer.node("Mul", [root, unit], f"{output}_rms")], output)
