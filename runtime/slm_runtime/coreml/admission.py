"""Which graphs of a bundle may be used on this machine."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slm_runtime.coreml.cache import CompiledCache
from slm_runtime.coreml.child import run_probe
from slm_runtime.coreml.provider import COMPUTE_UNITS
from slm_runtime.coreml.session import Compiled
from slm_runtime.coreml.strikes import add_strike, clear_strikes, read_strikes
from slm_runtime.coreml.verdict import Verdict
from slm_runtime.coreml.versions import Versions, system_build
from slm_runtime.static_graph import StaticGraphSpec


@dataclass(frozen=True)
class Admission:
    """One graph: its verdict, and the folder of its compiled model if it passed."""

    spec: StaticGraphSpec
    verdict: Verdict
    compiled: Compiled | None

    @property
    def summary(self) -> str:
        """Graph and verdict, for people."""
        if self.compiled is None:
            return f"{self.spec.file}: {self.verdict.reason}"
        where = ", ".join(f"{number} nodes on {name}" for name, number in self.verdict.nodes.items())
        return (
            f"{self.spec.file}: {where} in {self.verdict.partitions} partition(s); "
            f"{self.verdict.labels_equal}/{self.verdict.num_tickets} golden labels equal, "
            f"max |log-prob difference| {self.verdict.max_logprob_diff:.1e}"
        )


def describe_admissions(admissions: Sequence[Admission]) -> list[str]:
    """What CoreML was told and what became of every graph, a line each."""
    if not admissions:
        return []
    precision = admissions[0].spec.precision
    header = f"coreml: {precision}, compute units {COMPUTE_UNITS[precision]}, system {system_build()}"
    return [header, *(f"graph: {admission.summary}" for admission in admissions)]


def admit(
    folder: Path,
    specs: Sequence[StaticGraphSpec],
    versions: Versions,
    *,
    num_threads: int,
    retry: bool,
    progress: Callable[[str], None],
) -> list[Admission]:
    """A verdict on every graph of the bundle in `folder`; those without one are tried out now, one after the other.

    With `retry` graphs that had their last strike are tried again.
    """
    admissions = []
    for spec in specs:
        cache = CompiledCache(versions, spec)
        verdict = _known(cache, versions, spec, retry=retry)
        if verdict is None:
            progress(f"compiling and checking {spec.file}, once on this machine; this can take minutes")
            verdict = _try_out(folder, cache, versions, spec, num_threads)
        passed = verdict.outcome == "passed"
        admissions.append(Admission(spec, verdict, Compiled(spec, cache.folder) if passed else None))
    return admissions


def _known(cache: CompiledCache, versions: Versions, spec: StaticGraphSpec, *, retry: bool) -> Verdict | None:
    strikes = read_strikes(versions, spec)
    if strikes.are_out and not retry:
        return Verdict(
            "refused", f"failed {len(strikes.reasons)} times on this machine, last with {strikes.reasons[-1]}"
        )
    if strikes.are_out:
        clear_strikes(strikes)
        cache.discard()
    return cache.verdict


def _try_out(
    folder: Path, cache: CompiledCache, versions: Versions, spec: StaticGraphSpec, num_threads: int
) -> Verdict:
    """One try in a child process: a compiled model gets its place, a failure a strike."""
    try:
        staged = cache.stage()
    except OSError as error:
        return Verdict("refused", f"the cache folder cannot be written ({error})")
    try:
        verdict = run_probe(folder, spec, staged, num_threads)
        if verdict.outcome == "passed":
            cache.publish(staged)
    except OSError as error:
        return Verdict("refused", f"the cache folder cannot be written ({error})")
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    strikes = read_strikes(versions, spec)
    if verdict.outcome == "passed":
        clear_strikes(strikes)
    else:
        add_strike(strikes, verdict.reason)
    return verdict
