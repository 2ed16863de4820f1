"""Parquet in and out of slm-run classify, and a Parquet run that is interrupted."""

import csv
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_resume import start, stop_midway

LABELS = ("--labels", "billing,technical,account")


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    texts = [f"ticket {i} about an invoice" for i in range(120)]
    texts[5] = None
    table = pa.table({"id": list(range(100, 220)), "text": texts, "urgent": [i % 2 == 0 for i in range(120)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=40)
    return tmp_path / "in.parquet"


def test_c26_parquet_and_jsonl_outputs_agree(run, bundle: Path, tickets: Path, tmp_path: Path) -> None:
    argv = ("classify", bundle, "-i", tickets, *LABELS)
    records = run(*argv).records
    assert run(*argv, "-o", tmp_path / "out.parquet").code == 1
    for record, row in zip(records, pq.read_table(tmp_path / "out.parquet").to_pylist(), strict=True):
        assert row == record | {"id": str(record["id"]), "scores": list(record["scores"].items())}
    assert records[5]["error"] == "missing text: 'text' is null"


def test_csv_output_repeats_the_columns_of_parquet(run, bundle: Path, tickets: Path, tmp_path: Path) -> None:
    assert run("classify", bundle, "-i", tickets, "-o", tmp_path / "out.csv", *LABELS).code == 1
    with (tmp_path / "out.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["id", "text", "urgent", "label", "score", "margin", "error"]
    assert (rows[1]["id"], rows[1]["text"], rows[1]["urgent"]) == ("101", "ticket 1 about an invoice", "false")


def test_an_interrupted_parquet_run_goes_on(run, bundle: Path, tickets: Path, tmp_path: Path) -> None:
    out, flags = tmp_path / "out.parquet", (*LABELS, "--batch-tokens", "100")
    stop_midway(start(bundle, tickets, out, flags=flags), out, signal.SIGKILL)
    argv = ("classify", bundle, "-i", tickets, *flags)
    assert run(*argv, "-o", out, "--resume").code == 1
    assert run(*argv, "-o", tmp_path / "whole.parquet").code == 1
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
