"""Tiny random checkpoints in transformers' layout, each with a small tokenizer that was really trained."""

from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AddedToken,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Family = Literal["qwen2", "qwen3", "llama"]
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
UNFLAGGED_TOKEN = "<tool_call>"
TRAINED_TOKENS = 700
DEFAULT_SYSTEM = "You are a tiny model."
CHAT_TEMPLATE = (
    "{%- if messages[0].role != 'system' %}<|im_start|>system\n" + DEFAULT_SYSTEM + "<|im_end|>\n{% endif %}"
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TRAINING_TEXT = (
    "You classify support tickets. Answer with exactly one of: billing, technical, account, refund, delivery.",
    "system\nuser\nTicket: my invoice shows the wrong amount, I was charged twice.\nCategory:\nassistant\n",
    "account_access account_closure refund_request refund_status login_problem signin_problem",
    "The app crashes when I press save; an error appears and it's not working, they've said we're sorry.",
    "I cannot get into my account. Please shut my account for good!\n\n\thelp  (abc) 12 123 2024\r\n",
    "naïve café 日本語 テスト 👩\u200d💻",
)


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that cuts text as Qwen's does; `UNFLAGGED_TOKEN` is added but not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TRAINED_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT * 3, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens([AddedToken(content, special=True, normalized=False) for content in CONTROL_TOKENS])
    fast.add_tokens([AddedToken(UNFLAGGED_TOKEN, special=False, normalized=False)])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(family: Family, vocab_size: int, *, tied: bool = True) -> PreTrainedModel:
    """A random model that reacts to every position: wide initial weights, norms and biases away from 1 and 0."""
    sizes: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
        "rope_theta": 50_000.0,
        "tie_word_embeddings": tied,
    }
    torch.manual_seed(7)
    model: PreTrainedModel
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, head_dim=16))
    elif family == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            low, high = (0.5, 1.5) if name.endswith("weight") else (-0.2, 0.2)
            torch.nn.init.uniform_(parameter, low, high)
    return model.eval()


def make_checkpoint(folder: Path, family: Family = "qwen2", *, tied: bool = True) -> Path:
    """`folder`, filled as save_pretrained does it: weights, config, tokenizer and chat template."""
    tokenizer = train_tokenizer()
    make_model(family, len(tokenizer), tied=tied).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
