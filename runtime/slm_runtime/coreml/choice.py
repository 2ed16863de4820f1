"""`--provider`: CoreML, the CPU, or CoreML where it can be trusted and the CPU where it cannot."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

import onnxruntime as ort

from slm_runtime.coreml.admission import Admission, admit
from slm_runtime.coreml.cache import CompiledCache
from slm_runtime.coreml.provider import COREML, CoremlGraph, GraphRefusedError, open_compiled
from slm_runtime.coreml.session import Compiled, StaticDecoderSession
from slm_runtime.coreml.strikes import opening
from slm_runtime.coreml.versions import Versions, current_versions
from slm_runtime.errors import InputError, ProviderError
from slm_runtime.manifest import GOLDEN_FILE, GraphSpec, Manifest
from slm_runtime.session import DecoderSession, is_older
from slm_runtime.static_graph import StaticGraphSpec, StaticPrecision

ProviderChoice = Literal["auto", "cpu", "coreml"]
PRECISION_VARIABLE = "SLM_COREML_PRECISION"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Decoders:
    """The decoder to use. `spare` opens the one for prompts that do not fit it; None: they cannot be classified.

    `admissions` are the verdicts on CoreML graphs, where it came to that, `failures` says which are not used and why.
    """

    decoder: DecoderSession | StaticDecoderSession
    spare: Callable[[], DecoderSession] | None = None
    admissions: Sequence[Admission] = field(default_factory=tuple)
    failures: Sequence[str] = field(default_factory=tuple)


def check_provider(choice: str) -> None:
    """Return when the provider may be asked for on this machine; needs no bundle.

    Raises:
        InputError: no such choice.
        ProviderError: `coreml`, and this onnxruntime has none.
    """
    if choice not in get_args(ProviderChoice):
        raise InputError(f"provider {choice!r} is unknown, expected one of {', '.join(get_args(ProviderChoice))}")
    if choice == "coreml" and (reason := _missing_provider()):
        raise ProviderError(f"provider coreml {reason}")


def check_graphs(choice: str, folder: Path, manifest: Manifest) -> None:
    """Return when the bundle has what the provider needs; reads no file of it.

    Raises:
        ProviderError: `coreml`, and there is no CoreML graph, or none that could be checked.
    """
    if choice == "coreml" and (reason := _unusable_bundle(folder, manifest)):
        raise ProviderError(f"{folder}: {reason}")


def open_decoders(
    folder: Path,
    manifest: Manifest,
    graph: GraphSpec,
    choice: str,
    *,
    num_threads: int,
    say: Say,
    retry: bool = False,
) -> Decoders:
    """The decoder for a bundle whose files were checked; `graph` is the one for the CPU.

    `auto` takes the CPU quietly where there is no CoreML to be had, and with one notice through `say` where CoreML
    failed. With `retry` graphs that failed too often are tried again.

    Raises:
        ProviderError: `coreml` was asked for and no graph can be trusted.
        ArtifactError: the CPU's graph cannot be opened.
    """

    def on_cpu() -> DecoderSession:
        return DecoderSession(folder, manifest, graph, num_threads=num_threads)

    if choice == "cpu" or (choice == "auto" and (_missing_provider() or _unusable_bundle(folder, manifest))):
        return Decoders(on_cpu())
    specs = _chosen_graphs(manifest)
    versions = current_versions(specs[0].precision, manifest.digest)
    admissions = admit(folder, specs, versions, num_threads=num_threads, retry=retry, progress=_on_terminal)
    passed = [admission.compiled for admission in admissions if admission.compiled]
    failures = [admission.summary for admission in admissions if not admission.compiled]
    if passed:
        opener = _Opener(folder, versions)
        decoder = StaticDecoderSession(folder, manifest, passed, opener, provider=COREML, num_threads=num_threads)
        try:
            decoder.open_smallest()
        except GraphRefusedError as error:
            failures.append(f"{passed[0].spec.file}: {error}")
        else:
            if failures:
                say(f"CoreML runs without some of its graphs ({'; '.join(failures)})")
            return Decoders(decoder, _spare(on_cpu, say) if choice == "auto" else None, admissions, failures)
    reason = f"CoreML cannot be trusted on this machine ({'; '.join(failures)})"
    if choice == "coreml":
        raise ProviderError(
            f"{folder}: {reason}; use --provider cpu, and please report what `slm-run verify --provider coreml` prints"
        )
    say(f"{reason}, running on the CPU; `slm-run verify --provider coreml` tries again")
    return Decoders(on_cpu(), None, admissions, failures)


class _Opener:
    """Opens graphs that passed. One that does not open any more has to pass again."""

    def __init__(self, folder: Path, versions: Versions) -> None:
        self._folder = folder
        self._versions = versions

    def __call__(self, graph: Compiled) -> CoremlGraph:
        try:
            with opening(self._versions, graph.spec):
                return open_compiled(self._folder, graph)
        except GraphRefusedError:
            CompiledCache(self._versions, graph.spec).discard()
            raise


def _spare(on_cpu: Callable[[], DecoderSession], say: Say) -> Callable[[], DecoderSession]:
    def open_spare() -> DecoderSession:
        say("some prompts are longer than the bundle's CoreML graphs take; they run on the CPU")
        return on_cpu()

    return open_spare


def _missing_provider() -> str | None:
    """Why this onnxruntime has no usable CoreML; None: it has."""
    available = ort.get_available_providers()
    if COREML not in available:
        return (
            f"is not in this onnxruntime {ort.__version__} (available: {', '.join(available)}); "
            "use --provider cpu, or install an onnxruntime that has it"
        )
    if is_older(ort.__version__, StaticGraphSpec.min_onnxruntime):
        return (
            f"needs onnxruntime {StaticGraphSpec.min_onnxruntime} or newer, this is {ort.__version__}; "
            "pip install -U onnxruntime, or use --provider cpu"
        )
    return None


def _unusable_bundle(folder: Path, manifest: Manifest) -> str | None:
    """Why the bundle cannot be used with CoreML; None: it can."""
    if not manifest.coreml:
        return "holds no CoreML graph; export it with slm-export --profile coreml, or use --provider cpu"
    if not (folder / GOLDEN_FILE).is_file():
        return (
            f"holds no {GOLDEN_FILE}, so its CoreML graphs cannot be checked; "
            "export it without --no-verify, or use --provider cpu"
        )
    return None


def _chosen_graphs(manifest: Manifest) -> list[StaticGraphSpec]:
    """The graphs of the precision in `$SLM_COREML_PRECISION`; without it float32 where there is such a graph.

    Raises:
        InputError: the bundle has no graph of that precision.
    """
    there = {graph.precision for graph in manifest.coreml}
    default = "fp32" if "fp32" in there else "fp16"
    precision = cast("StaticPrecision", os.environ.get(PRECISION_VARIABLE, default))
    if precision not in there:
        raise InputError(
            f"{PRECISION_VARIABLE} is {precision!r}, the bundle holds CoreML graphs in {', '.join(sorted(there))} only"
        )
    return sorted(
        (graph for graph in manifest.coreml if graph.precision == precision),
        key=lambda graph: (graph.num_tokens, graph.past_len),
    )


def _on_terminal(message: str) -> None:
    """Progress, for someone who is watching."""
    if sys.stderr.isatty():
        sys.stderr.write(f"slm-run: {message}\n")
