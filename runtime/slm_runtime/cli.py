"""slm-run: use a bundle. Parse, call, exit code."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from slm_runtime.command import run_command
from slm_runtime.defaults import DEFAULT_BATCH_TOKENS, DEFAULT_SERVE_BATCH_TOKENS, DEFAULT_TICKET_TOKENS

BUNDLE = click.argument("bundle")
PRECISIONS = ("auto", "fp32", "int8")
EXIT_CODES = """\b
Exit codes: 0 all rows labelled, 1 some rows failed, 2 usage or input file unusable,
3 parity or verify failed, 4 bundle damaged or provider unavailable, 130 interrupted."""


def provider_options(command: Any) -> Any:
    """--provider and --threads, the same for every command that runs a graph."""
    threads = click.option("--threads", type=click.IntRange(1), help="Threads of the model; default: all usable CPUs.")
    provider = click.option(
        "--provider",
        type=click.Choice(["auto", "cpu", "coreml"]),
        default="auto" if sys.platform == "darwin" else "cpu",
        show_default="auto on macOS, else cpu",
        help="auto: CoreML if the bundle's graphs work here, else cpu.",
    )
    return provider(threads(command))


@click.group("slm-run", epilog=EXIT_CODES)
@click.version_option(package_name="slm-runtime", prog_name="slm-run")
def slm_run() -> None:
    """Label tickets with a small language model, exactly and fast.

    Every flag can also be set in the environment, for example SLM_RUN_CLASSIFY_THREADS=2.
    """


@slm_run.command(epilog=EXIT_CODES)
@BUNDLE
@click.option("-i", "--input", default="-", show_default=True, help="CSV, TSV, JSONL (.gz) or Parquet; - is stdin.")
@click.option("-o", "--output", default="-", show_default=True, help="JSONL, CSV, TSV or Parquet; - is stdout.")
@click.option("--labels", help='Comma-separated labels; "a, b" in quotes is one label.')
@click.option("--labels-file", type=click.Path(path_type=Path), help="One label per line, UTF-8.")
@click.option("--task", type=click.Path(path_type=Path), help="Task file (TOML).")
@click.option("--text-column", default="text", show_default=True, help="Column or key that holds the ticket.")
@click.option("--id-column", help="Column or key that holds the id; default: id where there is one.")
@click.option(
    "--input-format",
    type=click.Choice(["csv", "tsv", "jsonl", "parquet"]),
    help="Default: by the file's ending.",
)
@click.option("--encoding", help="Encoding of a CSV or TSV file; default: UTF-8, or UTF-16 with a byte order mark.")
@click.option("--delimiter", help="Column separator of a CSV file; default: found in the header.")
@click.option(
    "--scoring",
    type=click.Choice(["auto", "first-token", "sequence", "constrained"]),
    help="How labels are scored; default: the task's rule, else auto.",
)
@provider_options
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="auto",
    show_default=True,
    help="auto: int8 where its margin is wide enough, else fp32; int8 alone may change labels.",
)
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    default=DEFAULT_BATCH_TOKENS,
    show_default=True,
    help="Tokens that the model processes at once, padding included.",
)
@click.option(
    "--strategy",
    type=click.Choice(["packed", "bucketed", "naive", "item"]),
    default="packed",
    show_default=True,
    help="How tickets share rows and batches; labels do not depend on it.",
)
@click.option("--no-prefix-cache", is_flag=True, help="Compute the shared prompt prefix anew for every row.")
@click.option("--all-scores", is_flag=True, help="Score every label of a large set in full, also hopeless ones.")
@click.option("--no-dedupe", is_flag=True, help="Score equal tickets one by one.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help=f"Longest prompt in tokens; default: its instructions and {DEFAULT_TICKET_TOKENS} more.",
)
@click.option(
    "--truncate",
    type=click.Choice(["error", "left", "right"]),
    default="right",
    show_default=True,
    help="What happens to the text of a longer prompt: its row fails, or loses its start or its end.",
)
@click.option("--threshold", type=click.FloatRange(0, 1), help="Give no label when the score is below this.")
@click.option("--abstain", metavar="LABEL", help="The label of rows below the threshold; default: none.")
@click.option("--limit", type=click.IntRange(1), help="Stop after so many rows.")
@click.option("--strict", is_flag=True, help="Label nothing when there is a row that cannot be classified.")
@click.option("--spreadsheet-safe", is_flag=True, help="No CSV or TSV cell that a spreadsheet takes for a formula.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run of the same input and output files.")
@click.option(
    "--overwrite", is_flag=True, help="Replace an existing output, or drop an interrupted run, and start over."
)
@click.option("--dry-run", is_flag=True, help="Count rows and tokens and estimate the time; label nothing.")
@click.option(
    "--explain",
    type=click.IntRange(0),
    metavar="ROW",
    help="Show prompt, tokens and scores of one row, counted from 0; write nothing.",
)
@click.option("--quiet", is_flag=True, help="No progress bar, no summary.")
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: a file, folder or glob (also s3:// and the like) to a folder of parts, on many machines.",
)
@click.option("--ray-address", metavar="ADDR", help="HOST:PORT of a Ray cluster, or auto; default: this machine alone.")
@click.option("--concurrency", type=click.IntRange(1), help="Workers of the Ray job; default: as many as have room.")
@click.option(
    "--output-format",
    type=click.Choice(["jsonl", "csv", "tsv", "parquet"]),
    help="Format of the parts of a Ray job; default: jsonl.",
)
def classify(**flags: Any) -> int:
    """Give every ticket of a file one label.

    \b
    Example:
      slm-run classify models/qwen2.5-0.5b-instruct -i tickets.csv -o labels.jsonl \\
          --labels billing,technical,account
    """
    from slm_runtime.classify_request import ClassifyRequest

    request = ClassifyRequest(**flags)
    request.check_engine()
    if request.engine == "ray":
        from slm_runtime.ray_engine.command import classify_files

        return classify_files(request)
    from slm_runtime.classify_command import classify_file

    return classify_file(request)


@slm_run.command(epilog=EXIT_CODES)
@BUNDLE
@click.option("--workload", default="seed", show_default=True, help="seed, or a CSV, TSV or JSONL file of tickets.")
@click.option("--task", type=click.Path(path_type=Path), help="Task file (TOML); default: the seed's three labels.")
@click.option("--text-column", default="text", show_default=True, help="Column or key that holds the ticket.")
@click.option("--limit", type=click.IntRange(1), help="Use the first so many tickets.")
@click.option("--strategies", default="packed,bucketed", show_default=True, help="Comma-separated, or all.")
@click.option("--precision", default="auto", show_default=True, help="Comma-separated: auto, fp32, int8.")
@click.option("--no-dedupe", is_flag=True, help="Score equal tickets one by one.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Alternating repeats.")
@click.option("--no-roofline", is_flag=True, help="Skip the comparison with bare weight products.")
@click.option("--json", help="Write the result as JSON; - is stdout, instead of the table.")
@provider_options
def bench(**flags: Any) -> int:
    """Measure the strategies on this machine, alternating: items/s, padding, sharing, memory, share of the roofline."""
    from slm_runtime.bench_command import BenchRequest, run_bench

    return run_bench(BenchRequest(**flags))


@slm_run.command(epilog=EXIT_CODES)
@BUNDLE
@click.option("--task", type=click.Path(path_type=Path), required=True, help="Task file (TOML) to calibrate.")
@click.option("--gold", type=click.Path(path_type=Path), help="CSV, TSV, JSONL (.gz) or Parquet with right labels.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The calibrated task file.")
@click.option("--gold-column", default="label", show_default=True, help="Column or key that holds the right label.")
@click.option("--text-column", default="text", show_default=True, help="Column or key that holds the ticket.")
@click.option("--seed", type=int, default=0, show_default=True, help="Which texts are held back.")
@click.option("--limit", type=click.IntRange(1), help="Use the first so many rows.")
@click.option("--max-error", type=click.FloatRange(0, 1), help="Fit a threshold: accepted rows are wrong this rarely.")
@click.option("--overwrite", is_flag=True, help="Replace an existing task file.")
@click.option("--json", help="Write the result as JSON; - is stdout, instead of the table.")
@provider_options
def tune(**flags: Any) -> int:
    """Calibrate a task: fit temperature and prior on half of the gold rows, measure on the other half.

    Without --gold the prior is what the model says about texts without content.

    \b
    Example:
      slm-run tune models/qwen2.5-0.5b-instruct --task task.toml --gold gold.csv -o tuned.toml
    """
    from slm_runtime.tune_command import TuneRequest, tune_task

    return tune_task(TuneRequest(**flags))


@slm_run.command(epilog=EXIT_CODES)
@BUNDLE
@click.option("--labels", help='Comma-separated labels; "a, b" in quotes is one label.')
@click.option("--labels-file", type=click.Path(path_type=Path), help="One label per line, UTF-8.")
@click.option("--task", type=click.Path(path_type=Path), help="Task file (TOML).")
@click.option(
    "--scoring",
    type=click.Choice(["auto", "first-token", "sequence", "constrained"]),
    help="How labels are scored; default: the task's rule, else auto.",
)
@click.option("--threshold", type=click.FloatRange(0, 1), help="Give no label when the score is below this.")
@click.option("--abstain", metavar="LABEL", help="The label of texts below the threshold; default: none.")
@click.option("--all-scores", is_flag=True, help="Score every label of a large set in full, also hopeless ones.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help=f"Longest prompt in tokens; default: its instructions and {DEFAULT_TICKET_TOKENS} more.",
)
@click.option(
    "--truncate",
    type=click.Choice(["error", "left", "right"]),
    default="right",
    show_default=True,
    help="What happens to a longer text: it fails, or loses its start or its end.",
)
@provider_options
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8"]),
    default="fp32",
    show_default=True,
    help="Decoder that answers; int8 alone may change labels.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free port.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the bearer token that requests need; default: SLM_RUN_SERVE_TOKEN, else none.",
)
@click.option("--insecure", is_flag=True, help="Let other machines in without a token.")
@click.option(
    "--batch-tokens",
    type=click.IntRange(1),
    default=DEFAULT_SERVE_BATCH_TOKENS,
    show_default=True,
    help="Tokens scored together, estimated; what texts share counts once.",
)
@click.option("--max-batch", type=click.IntRange(1), default=256, show_default=True, help="Texts scored together.")
@click.option(
    "--max-wait-ms",
    type=click.FloatRange(0, 3_600_000),
    default=5.0,
    show_default=True,
    help="How long a text may wait for others.",
)
@click.option("--max-queue", type=click.IntRange(1), default=1024, show_default=True, help="Texts that may wait.")
@click.option("--max-texts", type=click.IntRange(1), default=256, show_default=True, help="Texts of one request.")
@click.option(
    "--max-body-bytes", type=click.IntRange(1), default=1_048_576, show_default=True, help="Size of one request."
)
@click.option(
    "--deadline-s",
    type=click.FloatRange(0, 86_400, min_open=True),
    default=30.0,
    show_default=True,
    help="Longest time from a request to its answer.",
)
@click.option("--quiet", is_flag=True, help="No line per request.")
def serve(**flags: Any) -> int:
    """Label texts over HTTP: POST /v1/classify, GET /docs, /healthz, /readyz, /metrics.

    \b
    Example:
      slm-run serve models/qwen2.5-0.5b-instruct --labels billing,technical,account
      curl localhost:8000/v1/classify -H 'Content-Type: application/json' -d '{"text": "I was charged twice"}'
    """
    from slm_runtime.serve.command import ServeRequest
    from slm_runtime.serve.command import serve as run_service

    return run_service(ServeRequest(**flags))


@slm_run.command(epilog=EXIT_CODES)
@BUNDLE
@provider_options
def verify(bundle: str, provider: str, threads: int | None) -> int:
    """Check a bundle on this machine: digests, versions, and the reference's answers to golden tickets."""
    from slm_runtime.bundle_commands import verify_bundle

    return verify_bundle(bundle, provider=provider, threads=threads)


@slm_run.command(epilog=EXIT_CODES)
@BUNDLE
def inspect(bundle: str) -> int:
    """Say what a bundle is: model, source, licence, sizes, parity record."""
    from slm_runtime.bundle_commands import inspect_bundle

    return inspect_bundle(bundle)


@slm_run.command(epilog=EXIT_CODES)
@click.argument("output", type=click.Path(path_type=Path))
@click.option("-o", "--page", type=click.Path(path_type=Path), required=True, help="The page, HTML; - is stdout.")
@click.option(
    "--input", type=click.Path(path_type=Path), help="Input with texts; default: the one that the run recorded."
)
@click.option("--text-column", help="Column or key that holds the ticket; default: the run's, else text.")
@click.option("--id-column", help="Column or key that holds the id; default: the run's, else id.")
@click.option("--gold", help="Column or key that holds the right label: adds accuracy, F1 and confusions.")
@click.option("--review", type=click.IntRange(0), default=25, show_default=True, help="Close calls to list with text.")
@click.option("--overwrite", is_flag=True, help="Replace an existing page.")
def report(**flags: Any) -> int:
    """Show what classify wrote to OUTPUT as one HTML page.

    \b
    Example:
      slm-run report labels.jsonl -o report.html --gold category
    """
    from slm_runtime.report.command import ReportRequest, write_report

    return write_report(ReportRequest(**flags))


def main(argv: Sequence[str] | None = None) -> int:
    """Run slm-run; returns the exit code."""
    return run_command(slm_run, argv, env_prefix="SLM_RUN")
