"""The service gives the answers of `slm-run classify`, to whoever asked, however many ask at once."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import Served, running

from slm_runtime.classifier import Classifier
from slm_runtime.options import RunOptions
from slm_runtime.records import Prediction
from slm_runtime.task import Task
from slm_runtime.workloads import seed_tickets

TASK = Task(("a", "b"))
NUM_CLIENTS = 64


@pytest.fixture(scope="module")
def served(bundle: Path) -> Iterator[Served]:
    with running(bundle) as service:
        yield service


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(dict.fromkeys(seed_tickets()))


@pytest.fixture(scope="module")
def expected(bundle: Path, texts: list[str]) -> dict[str, Prediction]:
    predictions = Classifier.load(bundle).classify(texts, TASK)
    return dict(zip(texts, predictions, strict=True))


def assert_same(result: dict, prediction: Prediction) -> None:
    assert result["label"] == prediction.label
    assert result["score"] == pytest.approx(prediction.score, abs=1e-5)
    assert result["scores"] == pytest.approx(dict(prediction.scores), abs=1e-5)
    assert (result["num_tokens"], result["truncated"]) == (prediction.num_tokens, prediction.truncated)
    assert result["error"] is None


def test_one_request_with_many_texts_equals_classify(
    served: Served, texts: list[str], expected: dict[str, Prediction]
) -> None:
    results = served.classify({"texts": [{"text": text, "id": i} for i, text in enumerate(texts[:100])]}).json()[
        "results"
    ]
    assert [result["id"] for result in results] == list(range(100))
    assert [result["row"] for result in results] == list(range(100))
    for text, result in zip(texts, results, strict=False):
        assert_same(result, expected[text])


def test_every_one_of_64_clients_gets_its_own_answers(
    served: Served, texts: list[str], expected: dict[str, Prediction]
) -> None:
    async def client(http: httpx.AsyncClient, number: int) -> int:
        answered = 0
        for turn in range(6):
            chosen = [texts[(number * 31 + turn * 7 + i) % len(texts)] for i in range(1 + (number + turn) % 3)]
            ids = [f"{number}/{turn}/{i}" for i in range(len(chosen))]
            asked = [{"text": text, "id": name} for text, name in zip(chosen, ids, strict=True)]
            answer = await http.post("/v1/classify", json={"texts": asked})
            assert answer.status_code == 200, answer.text
            results = answer.json()["results"]
            assert [result["id"] for result in results] == ids
            for text, result in zip(chosen, results, strict=True):
                assert_same(result, expected[text])
            answered += len(results)
        return answered

    async def everybody() -> int:
        limits = httpx.Limits(max_connections=NUM_CLIENTS)
        async with httpx.AsyncClient(base_url=served.url, limits=limits, timeout=60) as http:
            return sum(await asyncio.gather(*(client(http, number) for number in range(NUM_CLIENTS))))

    batches = served.metric("slm_run_batch_texts_count")
    answered = asyncio.run(everybody())
    assert answered == sum(1 + (number + turn) % 3 for number in range(NUM_CLIENTS) for turn in range(6))
    assert served.metric("slm_run_batch_texts_count") - batches < answered / 4  # they shared batches


def test_one_text_is_answered_as_a_list_of_one(served: Served) -> None:
    (result,) = served.classify({"text": "hello", "id": 7.5}).json()["results"]
    assert (result["id"], result["row"]) == (7.5, 0)
    assert set(result) == set(Prediction(0, None).to_record())


def test_a_text_that_cannot_be_classified_fails_alone(served: Served) -> None:
    answer = served.classify({"texts": ["hello", " \u200b", "bye"]})
    assert answer.status_code == 200
    assert [(r["label"] is None, r["error"]) for r in answer.json()["results"]] == [
        (False, None),
        (True, "empty text"),
        (False, None),
    ]


def test_too_long_a_text_is_cut_or_fails_as_in_classify(bundle: Path) -> None:
    long = "word " * 5000
    options = RunOptions(truncate="error", max_tokens=60)
    (prediction,) = Classifier.load(bundle).classify([long], TASK, options)
    with running(bundle, "--truncate", "error", "--max-tokens", "60") as served:
        (result,) = served.classify({"text": long}).json()["results"]
    assert result["error"] == prediction.error
    assert "limit 60" in result["error"]


def test_half_a_surrogate_pair_is_replaced_as_in_classify(served: Served) -> None:
    body = rb'{"texts": [{"text": "broken \ud800 text", "id": "\udc00"}, "broken \ufffd text"]}'
    answer = httpx.post(f"{served.url}/v1/classify", content=body, headers={"Content-Type": "application/json"})
    first, second = answer.json()["results"]
    assert first["id"] == "\ufffd"
    assert first["score"] == pytest.approx(second["score"], abs=1e-5)


def test_a_task_file_with_a_threshold_gives_the_abstain_label(bundle: Path, tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    task.write_text('labels = ["a", "b"]\nthreshold = 1.0\nabstain = "unsure"\n')
    with running(bundle, "--task", str(task)) as served:
        (result,) = served.classify({"text": "hello"}).json()["results"]
    assert result["label"] == "unsure"
    assert result["score"] < 1


def test_a_large_request_does_not_hold_a_small_one(bundle: Path, texts: list[str]) -> None:
    """With one text per batch, a small request comes second in turn and not after the large one's last text."""

    async def order() -> list[str]:
        finished: list[str] = []
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:

            async def ask(name: str, body: dict) -> None:
                assert (await http.post("/v1/classify", json=body)).status_code == 200
                finished.append(name)

            large = asyncio.create_task(ask("large", {"texts": texts[:250]}))
            await asyncio.sleep(0.05)
            await asyncio.gather(*(ask("small", {"text": text}) for text in texts[250:255]), large)
        return finished

    with running(bundle, "--max-batch", "1") as served:
        assert asyncio.run(order()) == ["small"] * 5 + ["large"]


def test_the_metrics_count_what_was_done(bundle: Path) -> None:
    with running(bundle) as served:
        served.classify({"texts": ["hello", "", "bye"]})
        served.classify({"nonsense": 1})
        httpx.get(f"{served.url}/some/secret/path")
        assert served.metric('slm_run_texts_total{outcome="labelled"}') == 2
        assert served.metric('slm_run_texts_total{outcome="failed"}') == 1
        assert served.metric('slm_run_requests_total{route="/v1/classify",status="200"}') == 1
        assert served.metric('slm_run_requests_total{route="/v1/classify",status="422"}') == 1
        assert served.metric('slm_run_requests_total{route="other",status="404"}') == 1
        assert served.metric("slm_run_queue_texts") == 0
        assert served.metric("slm_run_ready") == 1
        assert served.metric("slm_run_processed_tokens_total") > 0
        assert served.metric("process_resident_memory_bytes") > 0


def test_the_log_has_a_line_per_request_and_no_text(bundle: Path) -> None:
    with running(bundle) as served:
        served.classify({"text": "a very private matter", "id": "private id"})
        httpx.get(f"{served.url}/healthz?text=private")
    lines = [line for line in served.said if not line.startswith("slm-run:")]
    assert [line.split()[2:5] for line in lines] == [["POST", "/v1/classify", "200"], ["GET", "/healthz", "200"]]
    assert "private" not in "".join(served.said)


def test_the_document_and_its_page_name_every_route(served: Served) -> None:
    document = httpx.get(f"{served.url}/openapi.json").json()
    page = httpx.get(f"{served.url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"{method.upper()} {path}" in page.text
            assert httpx.request(method, f"{served.url}{path}").status_code != 404
    assert json.dumps(document).count("$ref") > 10
