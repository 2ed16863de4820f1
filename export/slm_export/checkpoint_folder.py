"""What a folder must hold to be a checkpoint, and what it must not: pickles, and code nobody asked for."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slm_runtime.errors import SourceError

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
SPDX_NAMES = {
    "apache-2.0": "Apache-2.0",
    "mit": "MIT",
    "bsd-3-clause": "BSD-3-Clause",
    "cc-by-4.0": "CC-BY-4.0",
}


def check_checkpoint_folder(folder: Path, *, trust_remote_code: bool) -> None:
    """Return if `folder` can be exported; its weights are opened, not read.

    Raises: SourceError naming the file that is missing, damaged, or asks for code of its own.
    """
    check_file_names(str(folder), (path.name for path in folder.iterdir() if path.is_file()))
    refuse_remote_code(folder, trust_remote_code=trust_remote_code)
    _check_chat_template(folder)
    _check_weights(folder)


def check_file_names(subject: str, names: Iterable[str]) -> None:
    """Return if these files can make a checkpoint; needs no file content, so it can run before a download.

    Raises: SourceError.
    """
    present = set(names)
    if "config.json" not in present:
        raise SourceError(
            f"{subject}: no config.json. Expected a checkpoint in the transformers layout: config.json, "
            "*.safetensors, tokenizer.json and a chat template."
        )
    if not any(name.endswith(".safetensors") for name in present):
        pickles = sorted(name for name in present if name.endswith(PICKLE_SUFFIXES))
        found = f"only {pickles[0]}, a pickle, which can run code when read" if pickles else "no weights"
        raise SourceError(
            f"{subject}: {found}; expected *.safetensors. Choose a revision with safetensors, or convert the "
            "weights with save_pretrained(safe_serialization=True) on a machine you can lose."
        )
    if "tokenizer.json" not in present:
        raise SourceError(
            f"{subject}: no tokenizer.json. Make one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)."
        )


def refuse_remote_code(folder: Path, *, trust_remote_code: bool) -> None:
    """Return if no configuration file of `folder` names Python code to load, or if that was allowed.

    Raises: SourceError naming the file.
    """
    for path in sorted(folder.glob("*config.json")):
        if "auto_map" in read_json_object(path) and not trust_remote_code:
            raise SourceError(
                f"{path}: auto_map asks to run Python code that comes with the model; refused. "
                "Read that code, and pass --trust-remote-code if you trust it."
            )


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises: SourceError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: not readable as JSON ({error}). Fetch the file again.") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: holds a JSON {type(content).__name__}, expected an object. Fetch it again.")
    return content


def folder_licence(folder: Path) -> str:
    """The licence in the model card or the licence text, as an SPDX name where known, else `unknown`."""
    card = folder / "README.md"
    if card.is_file():
        header = re.match(r"---\s*\n(.*?)\n---", card.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
        stated = re.search(r"^license:\s*['\"]?([^\s'\"]+)", header.group(1), re.MULTILINE) if header else None
        if stated:
            return spdx_name(stated.group(1))
    for path in sorted(folder.glob("LICENSE*")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "Apache License" in text and "Version 2.0" in text:
            return "Apache-2.0"
        if "MIT License" in text:
            return "MIT"
    return "unknown"


def spdx_name(stated: str | None) -> str:
    """The licence name with SPDX's capitals where we know them, as stated where we do not."""
    return SPDX_NAMES.get(stated.lower(), stated) if stated else "unknown"


def _check_chat_template(folder: Path) -> None:
    if any((folder / name).is_file() for name in TEMPLATE_FILES):
        return
    tokenizer_config = folder / "tokenizer_config.json"
    if tokenizer_config.is_file() and read_json_object(tokenizer_config).get("chat_template"):
        return
    raise SourceError(
        f"{folder}: no chat template in chat_template.jinja, chat_template.json or tokenizer_config.json. "
        "Choose the model's instruct variant, or put its template into chat_template.jinja."
    )


def _check_weights(folder: Path) -> None:
    from safetensors import SafetensorError, safe_open

    index = folder / "model.safetensors.index.json"
    named = set(read_json_object(index).get("weight_map", {}).values()) if index.is_file() else set()
    for name in sorted(named):
        if not (folder / name).is_file():
            raise SourceError(f"{folder}: {name} is missing, but {index.name} names it. Fetch the file again.")
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise SourceError(f"{path}: damaged or cut short ({error}). Fetch the file again.") from error
