"""The OpenAPI document as a page that needs no script and no network."""

import json
from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;"
    "padding:0 1rem}pre{overflow:auto;padding:.75rem;border:1px solid #8884;font-size:.85rem}"
    "td{padding:.1rem .75rem .1rem 0;vertical-align:top}h2{margin-top:2rem}code{font-size:.95em}"
)


def docs_page(document: dict[str, Any]) -> str:
    """HTML that lists every operation with its answers, then every schema."""
    info = document["info"]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>',
        f"<style>{STYLE}</style><h1>{escape(info['title'])}</h1><p>{escape(info['description'])}</p>",
        "<p>The same for programs: <code>/openapi.json</code></p>",
        *_operations(document["paths"]),
        "<h2>Schemas</h2>",
    ]
    for name, schema in document["components"]["schemas"].items():
        text = escape(json.dumps(schema, indent=1, ensure_ascii=False))
        parts.append(f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{text}</pre>')
    return "\n".join([*parts, "</html>"])


def _operations(paths: dict[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(operation['summary'])}"
            yield " Needs the bearer token.</p>" if "security" in operation else "</p>"
            if body := operation.get("requestBody"):
                yield f"<p>Body: {_schema_of(body)}</p>"
            rows = (
                f"<tr><td>{status}<td>{_schema_of(response)}<td>{escape(response['description'])}</tr>"
                for status, response in operation["responses"].items()
            )
            yield f"<table>{''.join(rows)}</table>"


def _schema_of(holder: dict[str, Any]) -> str:
    """The media type, and a link to the schema where it has a name."""
    ((media_type, content),) = holder["content"].items()
    name = content["schema"].get("$ref", "").rpartition("/")[2]
    link = f' <a href="#{escape(name)}">{escape(name)}</a>' if name else ""
    return f"<code>{escape(media_type)}</code>{link}"
