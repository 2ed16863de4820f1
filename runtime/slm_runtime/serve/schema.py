"""Pieces of JSON Schema."""

from typing import Any

Json = dict[str, Any]


def object_schema(properties: Json, optional: str = "") -> Json:
    """An object with these properties and no others; all are required but the `optional` ones, named with blanks."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional.split()],
        "additionalProperties": False,
    }


def ref(name: str) -> Json:
    """The schema called `name`."""
    return {"$ref": f"#/components/schemas/{name}"}
