"""/v1/systemone: the request shape of decision-model clients, answered as `classify` answers the same task."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from serving import Served, running

from slm_runtime.classifier import Classifier
from slm_runtime.options import RunOptions
from slm_runtime.task import Task

STATE = "My card was charged twice for one order."
QUESTIONS = {
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this ticket?",
        "criteria": {"billing": "payments and refunds", "technical": None, "account": "access"},
    },
    "urgent": {"type": "noul", "instructions": "Must this be answered today?", "criteria": {"true": "money is moving"}},
    "tone": {"type": "score", "instructions": "How upset is the customer?", "criteria": ["calm", "annoyed", "furious"]},
}


@pytest.fixture(scope="module")
def served(bundle: Path) -> Iterator[Served]:
    with running(bundle) as service:
        yield service


def ask(served: Served, body: object) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/systemone", json=body, timeout=60)


def expected(bundle: Path, instructions: str, labels: tuple[str, ...], descriptions: tuple[str, ...]) -> dict:
    system = f"{instructions}\nAnswer with exactly one of: {', '.join(labels)}."
    task = Task(labels, system=system, user="{text}\nAnswer:", descriptions=descriptions)
    (prediction,) = Classifier.load(bundle).classify([STATE], task, RunOptions(all_scores=True))
    return {"label": prediction.label, "scores": pytest.approx(dict(prediction.scores), abs=1e-5)}


def test_every_type_of_question_is_the_task_that_it_stands_for(served: Served, bundle: Path) -> None:
    answer = ask(served, {"state": STATE, "model": "any", "questions": QUESTIONS}).json()
    assert list(answer["answers"]) == ["team", "urgent", "tone"]
    assert answer["model"]
    assert answer["usage"]["output_tokens"] == 0
    assert answer["usage"]["input_tokens"] > 60

    team = answer["answers"]["team"]
    labels = ("billing", "technical", "account")
    found = expected(bundle, QUESTIONS["team"]["instructions"], labels, ("payments and refunds", "", "access"))
    assert (team["type"], team["choice"], team["probabilities"]) == ("choice", found["label"], found["scores"])
    assert team["confidence"] == pytest.approx((3 * max(team["probabilities"].values()) - 1) / 2)

    urgent = answer["answers"]["urgent"]
    found = expected(bundle, QUESTIONS["urgent"]["instructions"], ("yes", "no"), ("money is moving", ""))
    assert urgent["probabilities"] == found["scores"]
    assert urgent["noul"] == urgent["probabilities"]["yes"]

    tone = answer["answers"]["tone"]
    found = expected(bundle, QUESTIONS["tone"]["instructions"], ("calm", "annoyed", "furious"), ())
    assert tone["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"}
    assert {tone["legend"][level]: share for level, share in tone["probabilities"].items()} == found["scores"]
    assert tone["score"] == pytest.approx(tone["probabilities"]["1"] + 2 * tone["probabilities"]["2"])


def test_a_state_of_json_is_read_as_its_text(served: Served) -> None:
    question = {"q": QUESTIONS["team"]}
    state = {"ticket": "naïve café", "tags": ["a", 1, None]}
    answers = [
        ask(served, {"state": s, "questions": question}).json()["answers"]
        for s in (state, json.dumps(state, ensure_ascii=False))
    ]
    assert answers[0]["q"]["probabilities"] == pytest.approx(answers[1]["q"]["probabilities"], abs=1e-5)


def test_the_services_own_task_is_not_disturbed(served: Served, bundle: Path) -> None:
    (before,) = served.classify({"text": STATE}).json()["results"]
    for number in range(20):  # more tasks than are kept
        question = {"type": "noul", "instructions": f"Is it number {number}?"}
        assert ask(served, {"state": STATE, "questions": {"q": question}}).status_code == 200
    (after,) = served.classify({"text": STATE}).json()["results"]
    assert after["score"] == pytest.approx(before["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "expected an object"),
        ({"state": "x"}, "expected an object"),
        ({"state": 5, "questions": QUESTIONS}, "state"),
        ({"state": "x", "questions": {}}, "0 questions"),
        ({"state": "x", "questions": {str(n): QUESTIONS["urgent"] for n in range(65)}}, "65 questions"),
        ({"state": "x", "questions": QUESTIONS, "assets": {}}, "unknown key 'assets'"),
        ({"state": "x", "questions": QUESTIONS, "model": 5}, "model"),
        ({"state": " ", "questions": QUESTIONS}, "empty text"),
        ({"state": "word " * 5000, "questions": QUESTIONS}, "tokens, limit"),
        ({"state": "x", "questions": {"q": {"type": "box"}}}, "type must be"),
        ({"state": "x", "questions": {"q": {"type": ["choice"]}}}, "type must be"),
        ({"state": "x", "questions": {"q": {"type": "choice"}}}, "criteria"),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {}}}}, "criteria"),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {"a": 1}}}}, "description"),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {"": None}}}}, "empty"),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {" a": None}}}}, "white space"),
        ({"state": "x", "questions": {"q": {"type": "score", "criteria": ["one"]}}}, "2 to 10"),
        ({"state": "x", "questions": {"q": {"type": "score", "criteria": ["one", "one"]}}}, "different"),
        ({"state": "x", "questions": {"q": {"type": "noul", "criteria": {"maybe": "x"}}}}, "true and false"),
        ({"state": "x", "questions": {"q": {"type": "noul", "instructions": 5}}}, "instructions"),
        ({"state": "x", "questions": {"q": {"type": "noul", "instructions": "x" * 5000}}}, "4000 characters"),
    ],
)
def test_other_shapes_are_refused(served: Served, body: object, message: str) -> None:
    answer = ask(served, body)
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["error"]["message"]
