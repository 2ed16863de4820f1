"""The schemas of POST /v1/systemone."""

from slm_runtime.serve.schema import Json, object_schema, ref
from slm_runtime.serve.systemone import MAX_LEVELS, MAX_OPTIONS, MAX_QUESTION_CHARS, MAX_QUESTIONS

EXAMPLE: Json = {
    "state": {"ticket": "My card was charged twice for one order."},
    "questions": {
        "team": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "payments", "other": None}},
        "urgent": {"type": "noul", "instructions": "Must this be answered today?"},
        "tone": {"type": "score", "instructions": "How upset?", "criteria": ["calm", "annoyed", "furious"]},
    },
}
SHARE: Json = {"type": "number", "minimum": 0, "maximum": 1}
SHARES: Json = {"type": "object", "additionalProperties": SHARE}
JSON_TEXT: Json = {"type": ["string", "object", "array"]}
DESCRIPTION: Json = {"type": ["string", "null"]}


def systemone_schemas() -> Json:
    """By name: the request, its questions, the response and its answers."""
    choice = {"type": "object", "additionalProperties": DESCRIPTION, "minProperties": 1, "maxProperties": MAX_OPTIONS}
    levels = {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 2,
        "maxItems": MAX_LEVELS,
        "uniqueItems": True,
    }
    sides = object_schema({"true": DESCRIPTION, "false": DESCRIPTION}, optional="true false")
    questions = {"type": "object", "minProperties": 1, "maxProperties": MAX_QUESTIONS}
    return {
        "SystemOneRequest": {"examples": [EXAMPLE]}
        | object_schema(
            {
                "state": {**JSON_TEXT, "description": "What the questions are about; JSON is read as its text."},
                "questions": {**questions, "additionalProperties": ref("Question")},
                "model": {"type": "string", "description": "Not used: the service has one model."},
            },
            optional="model",
        ),
        "Question": {
            "description": f"At most {MAX_QUESTION_CHARS} characters. Options must be ones that the model can tell "
            "apart; others are refused with status 422.",
            "oneOf": [
                _question("choice", choice),
                _question("noul", {"oneOf": [sides, {"type": "null"}]}, optional="instructions criteria"),
                _question("score", levels),
            ],
        },
        "SystemOneResponse": object_schema(
            {
                "model": {"type": "string"},
                "answers": {"type": "object", "additionalProperties": ref("Answer")},
                "usage": object_schema({"input_tokens": {"type": "integer"}, "output_tokens": {"const": 0}}),
            }
        ),
        "Answer": {
            "oneOf": [
                _answer("choice", {"choice": {"type": "string"}}),
                _answer("noul", {"noul": SHARE}),
                _answer("score", {"score": {"type": "number"}, "legend": {"type": "object"}}),
            ]
        },
    }


def _question(kind: str, criteria: Json, optional: str = "instructions") -> Json:
    return object_schema({"type": {"const": kind}, "instructions": JSON_TEXT, "criteria": criteria}, optional=optional)


def _answer(kind: str, own: Json) -> Json:
    return object_schema({"type": {"const": kind}, **own, "probabilities": SHARES, "confidence": SHARE})
