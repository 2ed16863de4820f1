"""PyTorch to ONNX through optimum's exporter: the prefill step and the log-normaliser, written with external data."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import TensorProto, helper
from optimum.exporters.onnx import OnnxConfig
from optimum.exporters.onnx.convert import export
from optimum.exporters.onnx.model_patcher import ModelPatcher
from optimum.utils import NormalizedConfig
from optimum.utils import logging as optimum_logging

from slm_export.decoder import PrefillStep
from slm_export.families import Architecture
from slm_runtime.manifest import KV_KINDS, GraphPrecision, GraphSpec, NormalizerSpec

# Conservative on purpose: onnxruntime 1.20, the oldest that the base install admits, reads both.
OPSET = 17
IR_VERSION = 8
CONTRIB_OPSET = 1
MIN_ONNXRUNTIME = "1.20"
EXTERNAL_THRESHOLD_BYTES = 1024


def graph_spec(arch: Architecture, *, file: str, precision: GraphPrecision) -> GraphSpec:
    """The contract of the decoder graph that `export_decoder` writes for `arch`."""
    return GraphSpec(
        file=file,
        precision=precision,
        num_layers=arch.num_layers,
        num_heads=arch.num_heads,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
        hidden_size=arch.hidden_size,
    )


class PrefillStepPatcher(ModelPatcher):  # type: ignore[misc]
    """Optimum's patches of torch, without its rewriting of `past_key_values` into a transformers cache."""

    def __init__(self, config: OnnxConfig, model: PrefillStep, model_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(config, model, model_kwargs)
        self.patched_forward = self.orig_forward


class PrefillStepConfig(OnnxConfig):  # type: ignore[misc]
    """Names, axes and dummy inputs of the prefill step, for optimum's exporter; all names come from `GraphSpec`."""

    _MODEL_PATCHER = PrefillStepPatcher
    NORMALIZED_CONFIG_CLASS = NormalizedConfig

    def __init__(self, config: Any, spec: GraphSpec) -> None:
        super().__init__(config, task="feature-extraction")
        self.spec = spec

    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        spec = self.spec
        own = {
            spec.inputs_embeds: {0: "B", 1: "S"},
            spec.position_ids: {0: "B", 1: "S"},
            spec.attention_bias: {0: "B", 2: "S", 3: "T"},
            spec.score_index: {0: "N"},
        }
        return own | {name: {0: "past_B", 2: "P"} for name in spec.past_names()}

    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        return {self.spec.last_hidden: {0: "N"}} | {name: {0: "B", 2: "S"} for name in self.spec.present_names()}

    def generate_dummy_inputs(self, framework: str = "pt", **_: Any) -> dict[str, Any]:
        """Two rows of five tokens after a past of three, batch 1: no two axes share a size by accident."""
        spec, batch, length, past = self.spec, 2, 5, 3

        def new_past() -> torch.Tensor:
            return torch.randn(1, spec.num_kv_heads, past, spec.head_dim)

        inputs: dict[str, Any] = {
            spec.inputs_embeds: torch.randn(batch, length, spec.hidden_size),
            spec.position_ids: torch.arange(past, past + length).repeat(batch, 1),
            spec.attention_bias: torch.zeros(batch, 1, length, past + length),
            spec.score_index: torch.tensor([1, 4, 7]),
            "past_key_values": [(new_past(), new_past()) for _ in range(spec.num_layers)],
        }
        if framework == "pt":
            return inputs
        pasts = [tuple(t.numpy() for t in pair) for pair in inputs.pop("past_key_values")]
        return {name: tensor.numpy() for name, tensor in inputs.items()} | {"past_key_values": pasts}

    @classmethod
    def flatten_output_collection_property(cls, name: str, field: Any) -> dict[str, Any]:
        assert name == "past_key_values"
        return {
            GraphSpec.past_name(layer, kind): tensor
            for layer, pair in enumerate(field)
            for kind, tensor in zip(KV_KINDS, pair, strict=True)
        }


def export_decoder(step: PrefillStep, spec: GraphSpec, folder: Path) -> list[str]:
    """Write `spec.file` and its `.data` into `folder`; returns both names.

    The trace is written into `folder` first, so peak memory is the weights twice, in PyTorch and in the protobuf.
    """
    trace = folder / "trace" / spec.file
    with _quiet_exporter(), torch.no_grad():
        export(step.eval(), PrefillStepConfig(step.config, spec), trace, opset=OPSET)
    model = onnx.load(trace)
    for path in trace.parent.iterdir():
        path.unlink()
    trace.parent.rmdir()
    pin_versions(model)
    onnx.save(
        model,
        folder / spec.file,
        save_as_external_data=True,
        location=spec.data_file,
        size_threshold=EXTERNAL_THRESHOLD_BYTES,
    )
    return [spec.file, spec.data_file]


def pin_versions(model: onnx.ModelProto) -> None:
    """Set the IR version and the opsets to what the oldest supported onnxruntime reads."""
    model.ir_version = IR_VERSION
    domains = {node.domain for node in model.graph.node}
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", OPSET))
    model.opset_import.extend(helper.make_opsetid(domain, CONTRIB_OPSET) for domain in sorted(domains) if domain)


def write_normalizer(spec: NormalizerSpec, folder: Path) -> str:
    """Write the graph of `NormalizerSpec`: logsumexp over V' of hidden [N, D] x head_rows [V', D] transposed.

    It adds up in float64: the order of a sum depends on where its row lies in memory, and with it the last bits.
    """
    nodes = [
        helper.make_node("Transpose", [spec.head_rows], ["head_columns"], perm=[1, 0]),
        helper.make_node("MatMul", [spec.hidden, "head_columns"], ["logits"]),
        helper.make_node("ReduceMax", ["logits"], ["largest"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["logits", "largest"], ["shifted"]),
        helper.make_node("Exp", ["shifted"], ["weights"]),
        helper.make_node("Cast", ["weights"], ["long_weights"], to=TensorProto.DOUBLE),
        helper.make_node("ReduceSum", ["long_weights", "vocabulary_axis"], ["total"], keepdims=1),
        helper.make_node("Log", ["total"], ["log_total"]),
        helper.make_node("Cast", ["largest"], ["long_largest"], to=TensorProto.DOUBLE),
        helper.make_node("Add", ["log_total", "long_largest"], ["log_norm_column"]),
        helper.make_node("Squeeze", ["log_norm_column", "vocabulary_axis"], [spec.log_norm]),
    ]
    graph = helper.make_graph(
        nodes,
        "log_normalizer",
        [
            helper.make_tensor_value_info(spec.hidden, TensorProto.FLOAT, ["N", "D"]),
            helper.make_tensor_value_info(spec.head_rows, TensorProto.FLOAT, ["V", "D"]),
        ],
        [helper.make_tensor_value_info(spec.log_norm, TensorProto.DOUBLE, ["N"])],
        [helper.make_tensor("vocabulary_axis", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph)
    pin_versions(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / spec.file)
    return spec.file


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Tracer and deprecation warnings of the exporter are about its own code; the parity check judges the result."""
    level = optimum_logging.get_verbosity()
    optimum_logging.set_verbosity_error()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optimum_logging.set_verbosity(level)
