"""The first tokens of every prompt: fp32's keys and values in the int8 decoder's basis, and never computed again."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from test_precision_cli import LABELS, make_texts

from slm_runtime.classifier import Classifier
from slm_runtime.errors import FormatError
from slm_runtime.manifest import OpeningSpec, read_manifest
from slm_runtime.opening import read_opening
from slm_runtime.options import RunOptions
from slm_runtime.records import Ticket
from slm_runtime.task import Task


def opening_spec(bundle: Path) -> OpeningSpec:
    int8 = read_manifest(bundle).int8
    assert int8 is not None
    assert int8.opening is not None
    return int8.opening


def test_the_keys_are_those_of_fp32_and_the_values_are_rotated(int8_bundle: Path) -> None:
    spec = opening_spec(int8_bundle)
    stored = np.load(int8_bundle / spec.file)
    exact = Classifier.load(int8_bundle, precision="fp32").machinery.prefix_cache.past(spec.token_ids)
    for layer in range(len(stored) // 2):
        keys, values = exact.arrays[2 * layer], exact.arrays[2 * layer + 1]
        np.testing.assert_allclose(stored[2 * layer], keys[0], atol=1e-6)
        rotated = stored[2 * layer + 1]
        np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), np.linalg.norm(values[0], axis=-1), rtol=0.02)
        assert np.abs(rotated - values[0]).max() > 0.1 * np.abs(rotated).max(), "another basis"


@pytest.mark.parametrize("system", [None, "You sort the mail of a bakery."])
def test_every_prompt_of_the_template_begins_with_it(int8_bundle: Path, system: str | None) -> None:
    task = Task(LABELS, system=system)
    classifier = Classifier.load(int8_bundle, precision="int8")
    encoder = classifier.prepare(task).encoder
    spec = opening_spec(int8_bundle)
    assert encoder.prefix_ids[: len(spec.token_ids)] == spec.token_ids


@pytest.mark.parametrize("options", [RunOptions(), RunOptions(prefix_cache=False, strategy="item")])
def test_nobody_computes_it(int8_bundle: Path, options: RunOptions) -> None:
    spec = opening_spec(int8_bundle)
    texts = make_texts(5)
    processed = {}
    for precision in ("fp32", "int8"):
        runner = Classifier.load(int8_bundle, precision=precision).prepare(Task(LABELS), options)
        encoded, _ = runner.encode([Ticket(row, None, text) for row, text in enumerate(texts)])
        runner.score_all(encoded)
        processed[precision] = runner.counts.real_tokens
    once_per = 1 if options.prefix_cache else len(texts)
    assert processed["fp32"] - processed["int8"] == len(spec.token_ids) * once_per


def test_a_prompt_that_begins_otherwise_is_computed_whole(int8_bundle: Path) -> None:
    cache = Classifier.load(int8_bundle, precision="int8").machinery.prefix_cache
    spec = opening_spec(int8_bundle)
    assert cache.past((*spec.token_ids, 7)).num_tokens == len(spec.token_ids) + 1
    assert cache.num_computed == 1
    assert cache.past((7, *spec.token_ids)).num_tokens == len(spec.token_ids) + 1
    assert cache.num_computed == len(spec.token_ids) + 2


def test_a_file_that_is_not_an_opening_is_refused(int8_bundle: Path, tmp_path: Path) -> None:
    manifest, spec = read_manifest(int8_bundle), opening_spec(int8_bundle)
    assert manifest.int8 is not None
    longer = dataclasses.replace(spec, token_ids=(*spec.token_ids, 7))
    with pytest.raises(FormatError, match="export the bundle again"):
        read_opening(int8_bundle, longer, manifest.int8.decoder)
    (tmp_path / spec.file).write_bytes(b"not an array")
    with pytest.raises(FormatError, match="cannot be read"):
        read_opening(tmp_path, spec, manifest.int8.decoder)
