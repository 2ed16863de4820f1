"""`slm-export`: source, room, model, graphs, verification, bundle; in this order."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm_export.extras import require_export_extra
from slm_export.sources import Checkpoint, resolve, say_on_stderr
from slm_export.static_profile import StaticProfile
from slm_runtime.chat_template import ChatTemplate
from slm_runtime.errors import SourceError
from slm_runtime.manifest import TOKENIZER_FILE, GraphPrecision
from slm_runtime.prompt import PromptEncoder
from slm_runtime.session import keep_prepacked
from slm_runtime.task import Task
from slm_runtime.threads import usable_threads
from slm_runtime.tokenizer import PlainTokenizer


@dataclass(frozen=True)
class ExportRequest:
    """The flags of slm-export, as click delivers them."""

    model: str
    output: Path
    revision: str | None = None
    force: bool = False
    offline: bool = False
    cache_dir: Path | None = None
    trust_remote_code: bool = False
    no_verify: bool = False
    precision: tuple[GraphPrecision, ...] = ("fp32",)
    static: StaticProfile | None = None


def export_bundle(request: ExportRequest) -> int:
    """Build the bundle; it appears under its name only when it is complete and verified."""
    require_export_extra()
    from slm_export.bundle import check_target, require_room_for, staged_folder, write_bundle, write_manifest
    from slm_export.families import read_architecture
    from slm_export.int8.bundle import with_int8, without_fp32
    from slm_export.reference import Reference
    from slm_export.static_verify import verify_static_graphs
    from slm_export.verify import reference_answers, verified

    say, started = say_on_stderr, time.perf_counter()
    check_target(request.output, force=request.force)
    checkpoint = resolve(
        request.model,
        revision=request.revision,
        cache_dir=request.cache_dir,
        offline=request.offline,
        trust_remote_code=request.trust_remote_code,
        say=say,
    )
    config = _load_config(checkpoint, request)
    arch = read_architecture(config)
    require_room_for(arch, checkpoint.folder, request.output, request.static)
    with staged_folder(request.output, force=request.force) as folder:
        say(f"loading {checkpoint.model_id}")
        model, tokenizer = _load(checkpoint, request)
        sets = [] if request.no_verify else reference_answers(Reference(model, tokenizer), folder, say=say)
        manifest = write_bundle(folder, model, tokenizer, checkpoint, request.model, static=request.static, say=say)
        write_manifest(folder, manifest)
        if sets:
            manifest = verified(folder, manifest, sets, say=say)
            write_manifest(folder, manifest)
            verify_static_graphs(folder, manifest, sets, say=say)
        if "int8" in request.precision:
            manifest = with_int8(folder, manifest, model, tokenizer, say=say)
            if "fp32" not in request.precision:
                manifest = without_fp32(folder, manifest)
            write_manifest(folder, manifest)
    # The machine that exports is often the one that classifies: its first start may be as quick as the later ones.
    for precision in request.precision:
        if graph := manifest.graph(precision):
            keep_prepacked(request.output, manifest, graph, num_threads=usable_threads())
    say(f"{request.output} is ready, {time.perf_counter() - started:.0f} s")
    return 0


def _load_config(checkpoint: Checkpoint, request: ExportRequest) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.folder, trust_remote_code=request.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{checkpoint.folder}: config.json cannot be used ({reason})") from error


def _load(checkpoint: Checkpoint, request: ExportRequest) -> tuple[Any, Any]:
    """The model in float32 and its tokenizer; a prompt was rendered in our own sandbox before."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"trust_remote_code": request.trust_remote_code, "local_files_only": True}
    try:
        # The flag silences a false alarm of transformers 4.57 about tokenizers of Qwen's layout.
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, fix_mistral_regex=False, **options)
        _check_prompt(checkpoint.folder, tokenizer)
        model = AutoModelForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32, **options)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        reason = str(error).splitlines()[0]
        raise SourceError(f"{checkpoint.folder}: transformers cannot load it ({reason})") from error
    return model.eval(), tokenizer


def _check_prompt(folder: Path, tokenizer: Any) -> None:
    """Return when the chat template can frame a ticket; raises FormatError before anything slow is done."""
    from slm_export.bundle import special_tokens

    template = ChatTemplate(tokenizer.chat_template, special_tokens(tokenizer))
    PromptEncoder(PlainTokenizer(folder / TOKENIZER_FILE), template, Task(labels=("yes", "no")))
