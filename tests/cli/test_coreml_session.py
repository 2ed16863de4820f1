"""Fixed shapes against the dynamic graph, tiny model: the same labels and scores, however tickets are laid out."""

from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from fake_coreml import FakeOrt
from static_bundles import export_static

from slm_runtime.bundle import open_bundle
from slm_runtime.classifier import Classifier
from slm_runtime.coreml import provider
from slm_runtime.coreml.choice import Decoders
from slm_runtime.coreml.provider import COREML, open_compiled
from slm_runtime.coreml.session import KEPT_SESSIONS, Compiled, StaticDecoderSession
from slm_runtime.errors import InputError
from slm_runtime.manifest import read_manifest
from slm_runtime.model_input import chain_input
from slm_runtime.options import RunOptions
from slm_runtime.records import Ticket
from slm_runtime.session import DecoderSession, empty_past
from slm_runtime.task import Task

TOLERANCE = 2e-4
FIRST = Task(labels=("billing", "technical", "account"))
SEQUENCE = Task(labels=("refund_request", "refund_status", "account_access"), scoring="sequence")
CONSTRAINED = Task(labels=("refund_request", "refund_status", "account_access"), scoring="constrained")
TEXTS = [
    "help",
    "I was charged twice for my invoice",
    "I was charged twice for my invoice, and the app crashes",
    "The app crashes when I press save; an error appears",
    "Please shut my account for good! " * 4,
    "I cannot get into my account. " * 9,
    "naïve café 日本語",
    "help",
]
STRATEGIES = ("packed", "bucketed", "naive", "item")


@pytest.fixture(scope="module")
def static_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three row lengths after a past of 64, in both precisions."""
    folder = tmp_path_factory.mktemp("static") / "tiny"
    return export_static(checkpoint, folder, tokens=(64, 128, 256), precisions=("fp32", "fp16"))


@pytest.fixture(autouse=True)
def fake_coreml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "ort", FakeOrt())


def static_decoder(folder: Path, cache: Path, *, precision: str = "fp32", tokens: tuple[int, ...] = (64, 128, 256)):
    manifest = read_manifest(folder)
    graphs = [Compiled(g, cache) for g in manifest.coreml if g.precision == precision and g.num_tokens in tokens]
    return StaticDecoderSession(
        folder, manifest, graphs, partial(open_compiled, folder), provider=COREML, num_threads=2
    )


@pytest.fixture
def static(static_bundle: Path, tmp_path: Path) -> Classifier:
    """No spare decoder: everything runs in fixed shapes or not at all."""
    return Classifier(open_bundle(static_bundle), Decoders(static_decoder(static_bundle, tmp_path)))


@pytest.fixture(scope="module")
def dynamic(static_bundle: Path) -> Classifier:
    return Classifier.load(static_bundle)


def assert_same(found, expected, tolerance: float = TOLERANCE) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.error, a.label) == (None, b.label)
        assert a.scores.keys() == b.scores.keys()
        for label, score in a.scores.items():
            assert score == pytest.approx(b.scores[label], abs=tolerance)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("task", [FIRST, SEQUENCE, CONSTRAINED], ids=lambda task: task.scoring)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_every_strategy_answers_as_the_dynamic_graph_does(
    static: Classifier, dynamic: Classifier, strategy, task: Task, *, prefix_cache: bool
) -> None:
    options = RunOptions(strategy=strategy, prefix_cache=prefix_cache, dedupe=False)
    assert_same(static.classify(TEXTS, task, options), dynamic.classify(TEXTS, task))
    assert sum(entry["calls"] for entry in static.decoder.describe()) > 0


def test_packing_makes_fewer_calls_than_single_rows(static: Classifier) -> None:
    def calls(strategy) -> int:
        before = sum(entry["calls"] for entry in static.decoder.describe())
        static.classify(TEXTS, FIRST, RunOptions(strategy=strategy))
        return sum(entry["calls"] for entry in static.decoder.describe()) - before

    calls("packed")  # the prefix
    assert calls("packed") < calls("item")


def test_a_large_label_set_is_scored_in_full(static: Classifier, dynamic: Classifier) -> None:
    task = Task(labels=tuple(f"refund_{a}_{b}" for a in range(5) for b in range(5)), scoring="sequence")
    options = RunOptions(all_scores=True)
    assert_same(static.classify(TEXTS[:3], task), dynamic.classify(TEXTS[:3], task, options))


def test_a_prefix_longer_than_the_past_continues_in_the_rows(static: Classifier, dynamic: Classifier) -> None:
    task = Task(labels=FIRST.labels, system="You classify support tickets. " * 14)
    runner = static.prepare(task)
    assert len(runner.encoder.prefix_ids) > static.decoder.room.past_tokens
    assert_same(static.classify(TEXTS[:4], task), dynamic.classify(TEXTS[:4], task))
    assert runner.counts.processed_tokens == 0


def test_a_ticket_longer_than_a_row_has_its_beginning_in_the_past(static: Classifier, dynamic: Classifier) -> None:
    texts = ["word " * n for n in (1, 85, 93)]
    lengths = [p.num_tokens for p in dynamic.classify(texts, FIRST)]
    prefix = len(static.prepare(FIRST).encoder.prefix_ids)
    assert any(length - prefix > 256 for length in lengths)
    for strategy in STRATEGIES:
        assert_same(static.classify(texts, FIRST, RunOptions(strategy=strategy)), dynamic.classify(texts, FIRST))


def test_c38_what_fits_no_graph_is_the_error_of_its_row_and_names_the_way_out(static: Classifier) -> None:
    short, long = static.classify(["help", "word " * 400], FIRST)
    assert short.error is None
    assert long.label is None
    assert "at most 320" in long.error
    assert "--provider cpu" in long.error


def test_instructions_that_fit_no_graph_are_refused_before_any_ticket(static: Classifier) -> None:
    with pytest.raises(InputError, match="CoreML graphs take at most 320"):
        static.prepare(Task(labels=FIRST.labels, system="You classify support tickets. " * 90))


def test_labels_that_fit_no_row_are_refused_before_any_ticket(static_bundle: Path, tmp_path: Path) -> None:
    small = Classifier(open_bundle(static_bundle), Decoders(static_decoder(static_bundle, tmp_path, tokens=(64,))))
    labels = tuple(f"refund_{a}_{b}" for a in range(9) for b in range(9))
    with pytest.raises(InputError, match="labels need"):
        small.prepare(Task(labels=labels, scoring="sequence"))


def test_prompts_that_fit_no_graph_run_on_the_spare_decoder(
    static_bundle: Path, dynamic: Classifier, tmp_path: Path
) -> None:
    manifest = read_manifest(static_bundle)
    opened = []

    def spare() -> DecoderSession:
        opened.append(DecoderSession(static_bundle, manifest, manifest.decoder, num_threads=2))
        return opened[-1]

    both = Classifier(open_bundle(static_bundle), Decoders(static_decoder(static_bundle, tmp_path), spare))
    both.classify(TEXTS, FIRST)
    assert opened == []
    texts = [TEXTS[1], "word " * 400, TEXTS[2], "word " * 500]
    runner = both.prepare(FIRST)
    found = list(runner.run(Ticket(row, None, text) for row, text in enumerate(texts)))
    assert_same(found, dynamic.classify(texts, FIRST))
    assert (len(opened), runner.counts.cpu_sequences) == (1, 2)


def test_rows_of_a_batch_and_their_presents_equal_the_dynamic_graph(static: Classifier, dynamic: Classifier) -> None:
    """Three rows after a past, through both decoders directly."""
    past_input = chain_input(np.arange(5, 25), 0)
    _, static_past = static.decoder.with_present(past_input, empty_past(static.decoder.spec))
    _, dynamic_past = dynamic.decoder.with_present(past_input, empty_past(dynamic.decoder.spec))
    one = chain_input(np.arange(30, 70), 20)
    rows = type(one)(
        np.stack([one.token_ids[0], one.token_ids[0][::-1], one.token_ids[0] + 7]),
        np.repeat(one.position_ids, 3, axis=0),
        np.repeat(one.attention_bias, 3, axis=0),
        np.array([39, 40, 119, 3]),
    )
    hidden, joined = static.decoder.with_present(rows, static_past)
    expected, expected_joined = dynamic.decoder.with_present(rows, dynamic_past)
    np.testing.assert_allclose(hidden, expected, atol=2e-3)
    np.testing.assert_allclose(static.decoder.last_hidden(rows, static_past), hidden, atol=1e-6)
    for a, b in zip(joined.arrays, expected_joined.arrays, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-3)
    assert joined.num_tokens == 20 + 3 * 40
    assert not joined.arrays[0].flags.writeable


def test_the_smallest_bucket_is_used_and_at_most_two_stay_open(static: Classifier) -> None:
    decoder, past = static.decoder, empty_past(static.decoder.spec)
    opened = []
    open_graph = decoder._open_graph
    decoder._open_graph = lambda graph: opened.append(graph.spec.num_tokens) or open_graph(graph)
    for size in (64, 65, 64, 128, 129, 65, 64):
        decoder.last_hidden(chain_input(np.arange(size), 0), past)
        assert len(decoder._open) <= KEPT_SESSIONS
    assert opened == [64, 128, 256, 64]
    calls = {entry["tokens"]: entry["calls"] for entry in decoder.describe()}
    assert calls == {64: 3, 128: 3, 256: 1}
    assert all((list(entry["nodes"]), entry["partitions"]) == ([COREML], 1) for entry in decoder.describe())


def test_padding_of_the_bucket_is_counted(static: Classifier) -> None:
    runner = static.prepare(FIRST)
    list(runner.run([Ticket(0, None, "help")]))
    prefix = len(runner.encoder.prefix_ids)
    assert runner.counts.processed_tokens == prefix + 64
    assert runner.counts.padding_share > 0.5


def test_float16_graphs_agree_within_float16(static_bundle: Path, dynamic: Classifier, tmp_path: Path) -> None:
    half = Classifier(open_bundle(static_bundle), Decoders(static_decoder(static_bundle, tmp_path, precision="fp16")))
    for a, b in zip(half.classify(TEXTS, FIRST), dynamic.classify(TEXTS, FIRST), strict=True):
        assert a.error is None
        for label, score in a.scores.items():
            assert score == pytest.approx(b.scores[label], abs=0.05)


@pytest.mark.parametrize("failure", ["nan", "infinite"])
@pytest.mark.parametrize("task", [FIRST, SEQUENCE, CONSTRAINED], ids=lambda task: task.scoring)
def test_c38_nan_and_infinity_are_row_errors_and_never_the_first_label(
    static: Classifier, monkeypatch: pytest.MonkeyPatch, failure: str, task: Task
) -> None:
    monkeypatch.setattr(provider, "ort", FakeOrt(failure))
    for prediction in static.classify(TEXTS, task):
        assert prediction.label is None
        assert "not a finite number" in prediction.error


def test_c38_no_empty_tensor_reaches_coreml(static: Classifier, tmp_path: Path) -> None:
    """The fake provider refuses one, as CoreML does: the first call of a run has no past."""
    assert static.classify(["help"], FIRST)[0].error is None
    graph = next(static.bundle.folder.glob("*s64*fp32.onnx"))
    providers = [(COREML, {"ModelCacheDirectory": str(tmp_path)})]
    session = FakeOrt().InferenceSession(str(graph), ort.SessionOptions(), providers=providers, enable_fallback=0)
    with pytest.raises(AssertionError, match="empty tensor"):
        session.run(["hidden_out"], {"hidden": np.zeros((0, 64), np.float32)})
