"""Open a bundle: manifest, digests, tokenizer and template, in that order."""

from dataclasses import dataclass
from pathlib import Path

from slm_runtime.chat_template import ChatTemplate
from slm_runtime.errors import FormatError
from slm_runtime.integrity import check_files
from slm_runtime.manifest import TEMPLATE_FILE, TOKENIZER_FILE, Manifest, read_manifest
from slm_runtime.tokenizer import PlainTokenizer

MODELS_FOLDER = Path("models")


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are the ones that were exported. It may lie in a read-only folder and be moved."""

    folder: Path
    manifest: Manifest
    tokenizer: PlainTokenizer
    template: ChatTemplate


def find_bundle(name: str | Path) -> Path:
    """The folder of the bundle: `name` itself, or that name under `models/` of the working directory."""
    folder = Path(name)
    if not folder.exists() and (MODELS_FOLDER / folder).is_dir():
        return MODELS_FOLDER / folder
    if not folder.is_dir():
        raise FormatError(f"{name}: no such bundle folder, here or under {MODELS_FOLDER}/; make one with slm-export")
    return folder


def open_bundle(name: str | Path) -> Bundle:
    """The bundle called `name`, checked.

    Raises:
        FormatError: not a bundle, another format, or an unreadable tokenizer or template.
        DigestError: a file is missing or not the one that was exported.
    """
    folder = find_bundle(name)
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    return read_bundle(folder, manifest)


def read_bundle(folder: Path, manifest: Manifest) -> Bundle:
    """The bundle in `folder`, whose files were checked. Raises FormatError for an unreadable tokenizer or template."""
    source = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    template = ChatTemplate(source, dict(manifest.special_tokens))
    return Bundle(folder, manifest, PlainTokenizer(folder / TOKENIZER_FILE), template)
