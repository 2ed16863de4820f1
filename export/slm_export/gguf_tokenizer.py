"""A fast tokenizer from the metadata of a GGUF file, equal to the one the model was trained with.

transformers' own conversion ignores `tokenizer.ggml.pre`, so text is cut elsewhere than in training, and it
marks three fixed tokens as added, whatever the file says. Here vocabulary, merges and token types are the
file's, and how text is cut comes from a table with one row per value of `tokenizer.ggml.pre`.
"""

from dataclasses import dataclass
from typing import Any

from slm_export.gguf_file import ANOTHER_SOURCE, GgufHeader
from slm_runtime.errors import SourceError

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@dataclass(frozen=True)
class TextCutting:
    """How a model family prepares text before the merges.

    `words` is the pattern of one piece, None for GPT-2's. `single_digits` cuts every digit off first. `nfc`
    normalises. `whole_words` takes a piece that is a token as it stands. `adds_bos` is llama.cpp's default.
    """

    words: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False


# `default` is not here: llama.cpp writes it for models whose pre-tokenizer it did not recognise.
CUTTING_BY_PRE = {
    "qwen2": TextCutting(words=QWEN2_WORDS, nfc=True),
    "smollm": TextCutting(single_digits=True),
    "gpt-2": TextCutting(),
    "llama-bpe": TextCutting(words=LLAMA3_WORDS, whole_words=True, adds_bos=True),
}


def build_tokenizer(header: GgufHeader) -> Any:
    """A `PreTrainedTokenizerFast` with the file's chat template and special tokens.

    Raises: SourceError if the file's kind of tokenizer is not known here.
    """
    from transformers import PreTrainedTokenizerFast

    cutting = _cutting(header)
    tokenizer = _byte_level_bpe(header, cutting)
    tokenizer.add_tokens(_added_tokens(header))
    special_tokens = {name: header.token(key) for name, key in SPECIAL_TOKENS.items()}
    bos = special_tokens["bos_token"]
    if bos and header.metadata.get("tokenizer.ggml.add_bos_token", cutting.adds_bos):
        tokenizer.post_processor = _bos_before_text(bos, tokenizer.token_to_id(bos))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=header.required("tokenizer.chat_template"),
        model_max_length=header.required(f"{header.architecture}.context_length"),
        clean_up_tokenization_spaces=False,
        **special_tokens,
    )


def _cutting(header: GgufHeader) -> TextCutting:
    model = header.required("tokenizer.ggml.model")
    if model != "gpt2":
        raise SourceError(
            f"{header.path}: tokenizer.ggml.model is {model!r}; "
            f"only 'gpt2' (byte-level BPE) can be converted. {ANOTHER_SOURCE}"
        )
    pre = header.required("tokenizer.ggml.pre")
    if pre not in CUTTING_BY_PRE:
        raise SourceError(
            f"{header.path}: tokenizer.ggml.pre is {pre!r}; known: {', '.join(CUTTING_BY_PRE)}. {ANOTHER_SOURCE}"
        )
    return CUTTING_BY_PRE[pre]


def _byte_level_bpe(header: GgufHeader, cutting: TextCutting) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import BPE

    tokens = header.required("tokenizer.ggml.tokens")
    types = header.required("tokenizer.ggml.token_type")
    # Unused tokens only fill the matrix up to a round size; no text may reach them.
    vocab = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != UNUSED}
    merges = [tuple(merge.split(" ")) for merge in header.required("tokenizer.ggml.merges")]
    try:
        tokenizer = Tokenizer(BPE(vocab, merges, ignore_merges=cutting.whole_words))
    except Exception as error:
        raise SourceError(f"{header.path}: vocabulary and merges do not fit ({error}). Fetch it again.") from error
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if cutting.single_digits else []
    if cutting.words:
        steps.append(pre_tokenizers.Split(Regex(cutting.words), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cutting.words is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if cutting.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _added_tokens(header: GgufHeader) -> list[Any]:
    from tokenizers import AddedToken

    kinds = zip(header.required("tokenizer.ggml.tokens"), header.required("tokenizer.ggml.token_type"), strict=True)
    return [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in kinds
        if kind in (CONTROL, USER_DEFINED)
    ]


def _bos_before_text(bos: str, bos_id: int) -> Any:
    from tokenizers import processors

    with_bos = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )
    return processors.Sequence([processors.ByteLevel(trim_offsets=False), with_bos])
