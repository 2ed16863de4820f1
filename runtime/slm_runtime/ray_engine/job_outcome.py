"""What a job has done: for the record beside the output, and for the last line on the screen."""

from dataclasses import dataclass
from typing import Any

from slm_runtime.machine import peak_memory_bytes
from slm_runtime.ray_engine.job_manifest import JobManifest
from slm_runtime.ray_engine.job_progress import JobProgress
from slm_runtime.run_record import describe_counts


@dataclass(frozen=True)
class JobOutcome:
    """A job that is finished; `failed` says why inputs have no part."""

    manifest: JobManifest
    failed: dict[str, str]
    progress: JobProgress
    num_workers: int
    threads: int

    def describe(self) -> dict[str, Any]:
        """The part of the record that a job knows at its end; counts are those of all complete parts."""
        manifest, progress = self.manifest, self.progress
        return {
            **describe_counts(manifest.counts),
            "timeline": progress.timeline,
            "peak_memory_bytes": peak_memory_bytes(),
            "blank_lines": manifest.num_blank,
            "replaced_characters": manifest.num_replaced,
            "input": {
                "files": len(manifest.files),
                "size_bytes": sum(file.size_bytes for file in manifest.files),
            },
            "failed": self.failed,
            "workers": {
                "wanted": self.num_workers,
                "threads": self.threads,
                "started": len(progress.peak_memory),
                "peak_memory_bytes": max(progress.peak_memory.values(), default=0),
            },
        }

    def timings(self, load_s: float) -> dict[str, float]:
        """Seconds of this run, and those of all workers in the model."""
        seconds = {"load_s": load_s, "run_s": self.progress.elapsed_s, "model_s": self.manifest.counts.model_s}
        return {name: round(value, 4) for name, value in seconds.items()}

    def summary(self, rule: str) -> str:
        """One line."""
        counts, progress = self.manifest.counts, self.progress
        rate = progress.num_rows / progress.elapsed_s
        return (
            f"{counts.rows} rows of {len(self.manifest.parts)} files, {len(self.failed)} files failed; "
            f"now {progress.num_rows} rows in {progress.elapsed_s:.1f} s "
            f"({rate:.1f} rows/s, {rule} scoring, {len(progress.peak_memory)} workers): "
            f"{counts.errors} errors, {counts.truncated} truncated, {counts.duplicates} duplicates, "
            f"{counts.rechecked} re-checked; {counts.processed_tokens} of {counts.prompt_tokens} prompt tokens "
            f"processed, {counts.padding_share:.1%} padding"
        )
