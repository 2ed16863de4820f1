"""Tiny random models and the GGUF files a converter would write for them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map, quantize
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

Architecture = Literal["qwen2", "llama"]
VOCAB_SIZE = 512
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
ADDED = {
    "<|endoftext|>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<tool_call>": USER_DEFINED,
}
TRAINING_TEXT = [
    "My invoice shows the wrong amount, I'LL call. billing technical account 12 123 2024",
    "it's not working, they've said we're sorry (abc) <|im_start|> <tool_call> naïve café",
]


@dataclass(frozen=True)
class TinyVocabulary:
    """A byte-level vocabulary with merges, as both GGUF and transformers' slow files need it."""

    tokens: list[str]
    merges: list[str]

    @property
    def gguf_tokens(self) -> list[str]:
        """Normal, then added, then filling up to the matrix's size."""
        named = [*self.tokens, *ADDED]
        return named + [f"[PAD{i}]" for i in range(len(named), VOCAB_SIZE)]

    @property
    def gguf_types(self) -> list[int]:
        """One per GGUF token."""
        named = [NORMAL] * len(self.tokens) + list(ADDED.values())
        return named + [UNUSED] * (VOCAB_SIZE - len(named))


def train_vocabulary() -> TinyVocabulary:
    """Trained on single letters' pairs only, so merges run across what a pre-tokenizer has to cut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=460, initial_alphabet=ByteLevel.alphabet(), show_progress=False, max_token_length=5
    )
    tokenizer.train_from_iterator(TRAINING_TEXT * 3, trainer)
    vocab = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return TinyVocabulary(sorted(vocab, key=lambda token: vocab[token]), [" ".join(merge) for merge in merges])


def make_model(architecture: Architecture, *, tied: bool) -> PreTrainedModel:
    """A model with every weight random and exact in float16, and a rope base that is nobody's default."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.2,
        "rope_theta": 50_000.0,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(5)
    is_qwen2 = architecture == "qwen2"
    model = Qwen2ForCausalLM(Qwen2Config(**sizes)) if is_qwen2 else LlamaForCausalLM(LlamaConfig(**sizes))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        parameter.data = parameter.data.half().float()
    return model.eval()


def gguf_metadata(model: PreTrainedModel, vocabulary: TinyVocabulary, pre: str = "qwen2") -> dict[str, Any]:
    """What llama.cpp's converter would write; tests add to it or take away."""
    config = model.config
    arch = config.model_type
    end = len(vocabulary.tokens)
    return {
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.num_key_value_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": config.rope_theta,
        "general.license": "apache-2.0",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": vocabulary.gguf_tokens,
        "tokenizer.ggml.token_type": vocabulary.gguf_types,
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end + 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    metadata: dict[str, Any],
    kind: GGMLQuantizationType = GGMLQuantizationType.F16,
    *,
    permute: bool | None = None,
    extra_tensor: str | None = None,
    leave_out: str | None = None,
) -> Path:
    """`permute` None is what llama.cpp does: q and k rows of llama reordered, those of qwen2 left alone."""
    arch = model.config.model_type
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        _add(writer, key, value)
    names = get_tensor_name_map(MODEL_ARCH[arch.upper()], model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == leave_out or (name == "lm_head.weight" and model.config.tie_word_embeddings):
            continue
        data = tensor.numpy()
        if permute if permute is not None else arch == "llama":
            data = _permuted(name, data, model)
        stored = kind if data.ndim == 2 else GGMLQuantizationType.F32
        stem, _, suffix = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", quantize(data, stored), raw_dtype=stored)
    if extra_tensor:
        writer.add_tensor(extra_tensor, np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permuted(name: str, data: np.ndarray, model: PreTrainedModel) -> np.ndarray:
    """Each head's rows from halves (transformers' rotation) to neighbouring pairs (llama.cpp's)."""
    if "q_proj.weight" in name:
        num_heads = model.config.num_attention_heads
    elif "k_proj.weight" in name:
        num_heads = model.config.num_key_value_heads
    else:
        return data
    halves = data.reshape(num_heads, 2, -1, data.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(data.shape)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
