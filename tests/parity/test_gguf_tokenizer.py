"""C35: the tokenizer made from GGUF metadata, against transformers' own and against pieces cut by hand."""

import json
from pathlib import Path

import pytest
from gguf_files import ADDED, TinyVocabulary, gguf_metadata, make_model, train_vocabulary
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2TokenizerFast

from slm_export.gguf_file import GgufHeader
from slm_export.gguf_tokenizer import build_tokenizer

CONTROL = 3
STEMS = [
    "billing", " billing", "Billing account", "it's", "I'LL call", "we'VE  said", "12", "2024 123456",
    "½ ² Ⅷ 5½", "(abc)", "a_b-c", "naïve", "cafe\u0301", "日本語 テスト 123", "👩\u200d💻 ok", "\t\ttabs ",
    "   ", "x\r\n\r\n  y\n", "", "<tool_call>", "a<tool_call> b", "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|>", "<|im_end", "[PAD500]",
]  # fmt: skip
TEXTS = STEMS + [f"My {stem}, please\n" for stem in STEMS]


@pytest.fixture(scope="module")
def vocabulary() -> TinyVocabulary:
    return train_vocabulary()


def _build(vocabulary: TinyVocabulary, pre: str) -> PreTrainedTokenizerFast:
    metadata = gguf_metadata(make_model("qwen2", tied=True), vocabulary, pre)
    header = GgufHeader(Path("tiny.gguf"), metadata | {"general.architecture": "qwen2"}, frozenset(), num_weights=0)
    return build_tokenizer(header)


def test_c35_qwen2_ids_equal_transformers_on_50_texts(tmp_path: Path, vocabulary: TinyVocabulary) -> None:
    ids = {token: token_id for token_id, token in enumerate(vocabulary.tokens)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *vocabulary.merges]), encoding="utf-8")
    reference = Qwen2TokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for token, kind in ADDED.items():
        reference.add_tokens(AddedToken(token, special=kind == CONTROL, normalized=False))
    _build(vocabulary, "qwen2").save_pretrained(tmp_path / "saved")
    found = AutoTokenizer.from_pretrained(tmp_path / "saved", local_files_only=True)
    assert len(TEXTS) == 50
    assert {text: found.encode(text) for text in TEXTS} == {text: reference.encode(text) for text in TEXTS}


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("qwen2", ["I", "'LL", "Ġ", "1", "2", "3", "4", "Ġ(", "ab", "'s", "Ċ"]),
        ("smollm", ["I", "'", "LL", "Ġ", "1", "2", "3", "4", "Ġ(", "ab", "'s", "Ċ"]),
        ("gpt-2", ["I", "'", "LL", "Ġ1234", "Ġ(", "ab", "'s", "Ċ"]),
        ("llama-bpe", ["I", "'LL", "Ġ", "123", "4", "Ġ(", "ab", "'s", "Ċ"]),
    ],
)
def test_c35_text_is_cut_as_the_family_does(vocabulary: TinyVocabulary, pre: str, pieces: list[str]) -> None:
    tokenizer = _build(vocabulary, pre).backend_tokenizer
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("I'LL 1234 (ab's\n")] == pieces


def test_c35_added_tokens_are_one_id_and_flagged_as_in_the_file(vocabulary: TinyVocabulary) -> None:
    tokenizer = _build(vocabulary, "qwen2")
    flags = {added.content: added.special for added in tokenizer.added_tokens_decoder.values()}
    assert flags == {token: kind == CONTROL for token, kind in ADDED.items()}
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id] == [len(vocabulary.tokens) + 2]


@pytest.mark.parametrize(("pre", "starts_with_bos"), [("llama-bpe", True), ("qwen2", False)])
def test_c35_bos_is_added_where_the_family_adds_it(vocabulary: TinyVocabulary, pre: str, starts_with_bos: bool) -> None:
    tokenizer = _build(vocabulary, pre)
    assert (tokenizer.encode("hi")[0] == tokenizer.bos_token_id) is starts_with_bos
    assert tokenizer.encode("hi", add_special_tokens=False)[0] != tokenizer.bos_token_id
