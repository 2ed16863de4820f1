"""C35: a GGUF file that loads cleanly and is wrong. Tiny random models, as safetensors and as GGUF."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf_files import Architecture, TinyVocabulary, gguf_metadata, make_model, train_vocabulary, write_gguf
from transformers import AutoModelForCausalLM, PreTrainedModel

from slm_export.sources import resolve
from slm_runtime.errors import ResourceError, SourceError

F16, Q8_0 = GGMLQuantizationType.F16, GGMLQuantizationType.Q8_0
POSITION = 200
# float16 stores these weights exactly; what is left is the order of float32 sums.
F16_LOGITS_ATOL = 1e-5
MIN_COSINE = 0.9999


@pytest.fixture(scope="module")
def vocabulary() -> TinyVocabulary:
    return train_vocabulary()


@pytest.fixture(scope="module")
def qwen2() -> PreTrainedModel:
    return make_model("qwen2", tied=True)


def _load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()


def _logits(model: PreTrainedModel) -> torch.Tensor:
    token_ids = torch.arange(1, POSITION + 2).remainder(300)[None]
    with torch.inference_mode():
        return model(token_ids).logits[0, POSITION]


def _lowest_cosine(expected: PreTrainedModel, found: PreTrainedModel) -> float:
    others = found.state_dict()
    return min(
        torch.cosine_similarity(weight.flatten(), others[name].flatten(), dim=0).item()
        for name, weight in expected.state_dict().items()
    )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_c35_f16_gguf_equals_safetensors(
    tmp_path: Path, vocabulary: TinyVocabulary, architecture: Architecture, tied: bool
) -> None:
    model = make_model(architecture, tied=tied)
    model.save_pretrained(tmp_path / "safetensors")
    write_gguf(tmp_path / "tiny.gguf", model, gguf_metadata(model, vocabulary))
    checkpoint = resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path)
    found, expected = _load(checkpoint.folder), _load(tmp_path / "safetensors")
    torch.testing.assert_close(_logits(found), _logits(expected), atol=F16_LOGITS_ATOL, rtol=0)
    assert found.config.tie_word_embeddings is tied
    assert (found.lm_head.weight is found.model.embed_tokens.weight) is tied
    assert (found.config.bos_token_id, found.config.eos_token_id) == (
        len(vocabulary.tokens),
        len(vocabulary.tokens) + 2,
    )
    assert (checkpoint.kind, checkpoint.model_id, checkpoint.licence) == ("gguf", "tiny.gguf", "Apache-2.0")


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_c35_q8_gguf_keeps_every_tensor(tmp_path: Path, vocabulary: TinyVocabulary, architecture: Architecture) -> None:
    model = make_model(architecture, tied=False)
    write_gguf(tmp_path / "tiny.gguf", model, gguf_metadata(model, vocabulary), Q8_0)
    found = _load(resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path).folder)
    assert _lowest_cosine(model, found) > MIN_COSINE


@pytest.mark.parametrize(("architecture", "permute"), [("qwen2", True), ("llama", False)])
def test_c35_wrong_row_order_would_be_seen(
    tmp_path: Path, vocabulary: TinyVocabulary, architecture: Architecture, permute: bool
) -> None:
    model = make_model(architecture, tied=True)
    write_gguf(tmp_path / "tiny.gguf", model, gguf_metadata(model, vocabulary), permute=permute)
    found = _load(resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path).folder)
    assert _lowest_cosine(model, found) < 0.5
    assert (_logits(found) - _logits(model)).abs().max() > 100 * F16_LOGITS_ATOL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qwen2.rope.freq_base": None}, r"metadata qwen2\.rope\.freq_base is missing"),
        ({"tokenizer.chat_template": None}, r"metadata tokenizer\.chat_template is missing"),
        ({"tokenizer.ggml.token_type": None}, r"tokenizer\.ggml\.token_type is missing"),
        ({"tokenizer.ggml.pre": "default"}, r"tokenizer\.ggml\.pre is 'default'; known: qwen2, smollm"),
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer\.ggml\.model is 'llama'"),
        ({"qwen2.rope.scaling.type": "yarn"}, r"rope\.scaling\.type is 'yarn', only 'none'"),
        ({"qwen2.attention.key_length": 32}, r"key_length is 32, only 16"),
    ],
)
def test_c35_metadata_that_would_be_guessed_is_refused(
    tmp_path: Path, vocabulary: TinyVocabulary, qwen2: PreTrainedModel, changes: dict[str, Any], message: str
) -> None:
    metadata = gguf_metadata(qwen2, vocabulary) | changes
    written = {key: value for key, value in metadata.items() if value is not None}
    write_gguf(tmp_path / "tiny.gguf", qwen2, written)
    with pytest.raises(SourceError, match=message):
        resolve(str(tmp_path / "tiny.gguf"), cache_dir=tmp_path)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"extra_tensor": "rope_freqs.weight"}, r"without a place in qwen2: \['rope_freqs\.weight'\]"),
        ({"leave_out": "model.norm.weight"}, r"weights the file lacks: \['model\.norm\.weight'\]"),
    ],
)
def test_c35_tensor_that_would_be_skipped_or_made_up_is_refused(
    tmp_path: Path, vocabulary: TinyVocabulary, qwen2: PreTrainedModel, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, qwen2, gguf_metadata(qwen2, vocabulary), **change)
    with pytest.raises(SourceError, match=message):
        resolve(str(path), cache_dir=tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"GGML" + data[4:]])
def test_damaged_file_is_one_line(
    tmp_path: Path, vocabulary: TinyVocabulary, qwen2: PreTrainedModel, damage: Callable[[bytes], bytes]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", qwen2, gguf_metadata(qwen2, vocabulary))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match="not a readable GGUF file, or cut short") as caught:
        resolve(str(path), cache_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_conversion_happens_once_and_needs_room(
    tmp_path: Path, vocabulary: TinyVocabulary, qwen2: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", qwen2, gguf_metadata(qwen2, vocabulary))
    said: list[str] = []
    with monkeypatch.context() as full_disk:
        full_disk.setattr("slm_export.resources.free_disk_bytes", lambda path: 10)
        with pytest.raises(ResourceError, match=r"converting tiny\.gguf needs"):
            resolve(str(path), cache_dir=tmp_path, say=said.append)
    assert said == []
    first = resolve(str(path), cache_dir=tmp_path, say=said.append)
    assert resolve(str(path), cache_dir=tmp_path, say=said.append) == first
    assert len(said) == 1
    assert list(first.folder.parent.iterdir()) == [first.folder]


def test_slower_of_two_processes_takes_the_faster_ones_folder(
    tmp_path: Path, vocabulary: TinyVocabulary, qwen2: PreTrainedModel
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", qwen2, gguf_metadata(qwen2, vocabulary))
    faster: list[Path] = []

    def convert_meanwhile(_: str) -> None:
        if not faster:
            faster.append(tmp_path)
            faster[0] = resolve(str(path), cache_dir=tmp_path, say=lambda _: None).folder

    slower = resolve(str(path), cache_dir=tmp_path, say=convert_meanwhile).folder
    assert [slower] == faster == list(slower.parent.iterdir())
