"""POST /v1/systemone: a state, and typed questions with their options, in the shape that decision-model clients speak.

Every question becomes a task of its own, and its answer is what `slm-run classify` says with that task.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slm_runtime.errors import InputError
from slm_runtime.records import Prediction, Ticket
from slm_runtime.serve.problems import bad_field
from slm_runtime.task import Task
from slm_runtime.ticket_text import replace_lone_surrogates

MAX_QUESTIONS = 64
MAX_OPTIONS = 100
MAX_LEVELS = 10
# Instructions and options of one question; they are computed anew for every question that was not asked lately.
MAX_QUESTION_CHARS = 4000
USER = "{text}\nAnswer:"
YES, NO = "yes", "no"


@dataclass(frozen=True)
class Question:
    """One question: its type, and the task that it is for the model."""

    name: str
    kind: str
    task: Task


@dataclass(frozen=True)
class Asked:
    """A whole request: what it is about, and what is asked."""

    state: str
    questions: tuple[Question, ...]

    def calls(self) -> list[tuple[Task, Sequence[Ticket]]]:
        return [(question.task, [Ticket(0, None, self.state)]) for question in self.questions]


def parse_asked(value: Any) -> Asked:
    """The questions of a request body. Raises RequestError 422 for another shape."""
    if not isinstance(value, dict) or not isinstance(value.get("questions"), dict) or "state" not in value:
        raise bad_field('expected an object with "state" and "questions"')
    if unknown := sorted(set(value) - {"state", "questions", "model"}):
        raise bad_field(f"unknown key {unknown[0][:40]!r}, expected state, questions and model")
    if not isinstance(value.get("model", ""), str):
        raise bad_field('"model" must be a string; this service has one model and answers with it')
    state, questions = value["state"], value["questions"]
    if not isinstance(state, (str, dict, list)):
        raise bad_field('"state" must be a string, an object or an array')
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise bad_field(f"{len(questions)} questions, expected 1 to {MAX_QUESTIONS}")
    return Asked(_as_text(state), tuple(_question(name, question) for name, question in questions.items()))


def answered(asked: Asked, predictions: Sequence[Prediction], model: str) -> dict[str, Any]:
    """The body of the answer. Raises RequestError 422 where a question has no answer."""
    answers = {}
    for question, prediction in zip(asked.questions, predictions, strict=True):
        if prediction.error is not None:
            raise bad_field(f"question {question.name[:40]!r}: {prediction.error}")
        answers[replace_lone_surrogates(question.name)] = _answer(question, prediction)
    tokens = sum(prediction.num_tokens for prediction in predictions)
    return {"model": model, "answers": answers, "usage": {"input_tokens": tokens, "output_tokens": 0}}


def _question(name: str, value: Any) -> Question:
    where = f"question {name[:40]!r}"
    if not isinstance(value, dict) or set(value) - {"type", "instructions", "criteria"}:
        raise bad_field(f"{where}: expected an object with type, instructions and criteria")
    instructions = value.get("instructions", "")
    if not isinstance(instructions, (str, dict, list)):
        raise bad_field(f"{where}: instructions must be a string, an object or an array")
    kind, criteria = value.get("type"), value.get("criteria")
    options = _OPTIONS[kind](where, criteria) if isinstance(kind, str) and kind in _OPTIONS else None
    if options is None:
        raise bad_field(f"{where}: type must be one of {', '.join(_OPTIONS)}")
    text = _as_text(instructions)
    if sum(map(len, [text, *options, *options.values()])) > MAX_QUESTION_CHARS:
        raise bad_field(f"{where}: more than {MAX_QUESTION_CHARS} characters of instructions and criteria")
    lead = f"Answer with exactly one of: {', '.join(options)}."
    try:
        task = Task(
            labels=tuple(options),
            system=f"{text}\n{lead}" if text else lead,
            user=USER,
            descriptions=tuple(options.values()),
        )
    except InputError as error:
        raise bad_field(f"{where}: {error}") from error
    return Question(name, str(kind), task)


def _choice(where: str, criteria: Any) -> dict[str, str]:
    if not isinstance(criteria, dict) or not 1 <= len(criteria) <= MAX_OPTIONS:
        raise bad_field(f"{where}: criteria must be an object of 1 to {MAX_OPTIONS} options")
    return {_label(option): _description(where, text) for option, text in criteria.items()}


def _noul(where: str, criteria: Any) -> dict[str, str]:
    criteria = {} if criteria is None else criteria
    if not isinstance(criteria, dict) or set(criteria) - {"true", "false"}:
        raise bad_field(f"{where}: criteria must be an object with true and false, or null")
    return {YES: _description(where, criteria.get("true")), NO: _description(where, criteria.get("false"))}


def _score(where: str, criteria: Any) -> dict[str, str]:
    if not isinstance(criteria, list) or not 2 <= len(criteria) <= MAX_LEVELS:
        raise bad_field(f"{where}: criteria must be an array of 2 to {MAX_LEVELS} levels, the lowest first")
    if not all(isinstance(level, str) for level in criteria) or len(set(criteria)) < len(criteria):
        raise bad_field(f"{where}: levels must be different strings")
    return {_label(level): "" for level in criteria}


_OPTIONS = {"choice": _choice, "noul": _noul, "score": _score}


def _label(option: str) -> str:
    return replace_lone_surrogates(option)


def _description(where: str, text: Any) -> str:
    if text is not None and not isinstance(text, str):
        raise bad_field(f"{where}: a description must be a string or null")
    return replace_lone_surrogates(text or "")


def _answer(question: Question, prediction: Prediction) -> dict[str, Any]:
    labels = question.task.labels
    shares = [prediction.scores[label] for label in labels]
    confidence = _confidence(shares)
    if question.kind == "noul":
        share = prediction.scores[YES]
        return {"type": "noul", "noul": share, "probabilities": {YES: share, NO: shares[1]}, "confidence": confidence}
    if question.kind == "score":
        levels: Mapping[str, float] = {str(level): share for level, share in enumerate(shares)}
        expected = sum(level * share for level, share in enumerate(shares))
        legend = {str(level): label for level, label in enumerate(labels)}
        return {
            "type": "score",
            "score": expected,
            "legend": legend,
            "probabilities": dict(levels),
            "confidence": confidence,
        }
    return {
        "type": "choice",
        "choice": prediction.label,
        "probabilities": dict(prediction.scores),
        "confidence": confidence,
    }


def _confidence(shares: Sequence[float]) -> float:
    """0 when all options are equally likely, 1 when one has everything."""
    count = len(shares)
    return 1.0 if count == 1 else min(max((count * max(shares) - 1) / (count - 1), 0.0), 1.0)


def _as_text(value: Any) -> str:
    """A string as it is, other values as their JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return replace_lone_surrogates(text)
