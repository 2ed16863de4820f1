"""The OpenAPI document, written by hand beside the code that it describes; the tests hold one against the other."""

from slm_runtime.serve.openapi_systemone import systemone_schemas
from slm_runtime.serve.schema import Json, object_schema, ref
from slm_runtime.serve.settings import ServeSettings

ID: Json = {"type": ["string", "number", "boolean", "null"], "description": "Repeated in the result."}
TEXT: Json = {"type": "string", "description": "The ticket. One that cannot be classified gets a result with `error`."}
PROBLEMS = {
    "400": "Not JSON, not UTF-8, a doubled key, NaN, or a number beyond reading.",
    "401": "The bearer token is missing or wrong.",
    "408": "The body did not arrive within the deadline.",
    "413": "The body is too long, or has too many texts.",
    "415": "Another content type than application/json, or a compressed body.",
    "422": "JSON of another shape.",
    "503": "The queue is full, or the model is not loaded yet; Retry-After says when to try again.",
    "504": "No answer within the deadline.",
}


def openapi_document(settings: ServeSettings, *, secured: bool) -> Json:
    """OpenAPI 3.1 for a service with these limits."""
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": "slm-run serve",
            "version": "1",
            "description": "Gives every text one label out of the list that the service was started with.",
        },
        "paths": {
            "/v1/classify": {"post": _post("Label one text or many.", "Classify", secured)},
            "/v1/systemone": {"post": _post("Answer typed questions about a state.", "SystemOne", secured)},
            "/healthz": {"get": _get("The process lives.", {"200": _json("Status", "It does.")})},
            "/readyz": {
                "get": _get(
                    "The model is loaded and requests are taken.",
                    {"200": _json("Status", "Ready."), "503": _json("Status", "Loading, draining or failed.")},
                )
            },
            "/metrics": {"get": _secured(_get("Prometheus metrics.", _text_or_401(secured)), secured)},
            "/openapi.json": {"get": _get("This document.", {"200": _content("application/json", {"type": "object"})})},
            "/docs": {"get": _get("This document, for people.", {"200": _content("text/html", {"type": "string"})})},
        },
        "components": {"schemas": _schemas(settings)},
    }
    if secured:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


def _post(summary: str, name: str, secured: bool) -> Json:
    problems = {status: _json("Error", text) for status, text in PROBLEMS.items() if secured or status != "401"}
    problems["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    body = _content("application/json", ref(f"{name}Request"))
    operation: Json = {
        "summary": summary,
        "operationId": name.lower(),
        "requestBody": {"required": True, "content": body["content"]},
        "responses": {"200": _json(f"{name}Response", "In the order of the request."), **problems},
    }
    return _secured(operation, secured)


def _schemas(settings: ServeSettings) -> Json:
    share = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
    result = {
        "id": ID,
        "row": {"type": "integer", "minimum": 0, "description": "Place of the text in the request."},
        "label": {"type": ["string", "null"], "description": "Null where `error` is set or `score` is too low."},
        "score": {**share, "description": "Probability of the winner among the labels."},
        "margin": {"type": ["number", "null"], "description": "Distance between the two best labels, in nats."},
        "scores": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1}},
        "label_mass": {**share, "description": "Share of the model's whole distribution that the labels hold."},
        "num_tokens": {"type": "integer", "minimum": 0, "description": "Length of the prompt as it was used."},
        "truncated": {"type": "boolean", "description": "Whether text was cut off."},
        "rechecked": {"type": "boolean", "description": "Whether the text was scored again alone."},
        "error": {"type": ["string", "null"], "description": "Why the text has no label."},
    }
    problem = object_schema({"code": {"type": "string"}, "message": {"type": "string"}})
    return {
        "ClassifyRequest": {
            "description": f"At most {settings.max_body_bytes} bytes of JSON.",
            "oneOf": [ref("OneText"), ref("ManyTexts")],
        },
        "OneText": {"examples": [{"text": "I was charged twice", "id": 7}]}
        | object_schema({"text": TEXT, "id": ID}, optional="id"),
        "ManyTexts": object_schema(
            {
                "texts": {
                    "type": "array",
                    "items": {"oneOf": [TEXT, ref("OneText")]},
                    "minItems": 1,
                    "maxItems": settings.max_texts,
                }
            }
        ),
        "ClassifyResponse": object_schema({"results": {"type": "array", "items": ref("Result"), "minItems": 1}}),
        "Result": object_schema(result),
        **systemone_schemas(),
        "Status": object_schema({"status": {"enum": ["ok", "ready", "loading", "draining", "failed"]}}),
        "Error": object_schema({"error": problem}),
    }


def _get(summary: str, responses: Json) -> Json:
    return {"summary": summary, "responses": responses}


def _secured(operation: Json, secured: bool) -> Json:
    return {**operation, "security": [{"token": []}]} if secured else operation


def _text_or_401(secured: bool) -> Json:
    responses = {"200": _content("text/plain", {"type": "string"})}
    return {**responses, "401": _json("Error", PROBLEMS["401"])} if secured else responses


def _json(schema: str, description: str) -> Json:
    return _content("application/json", ref(schema)) | {"description": description}


def _content(media_type: str, schema: Json) -> Json:
    return {"description": "", "content": {media_type: {"schema": schema}}}
