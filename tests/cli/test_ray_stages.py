"""The stages of a Ray job without Ray: rows and bytes are those of the local run, on any of pyarrow's filesystems."""

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from slm_runtime.classifier import Classifier
from slm_runtime.errors import ArtifactError, OutputError
from slm_runtime.options import RunOptions
from slm_runtime.ray_engine.blocks import MIN_ROWS, BlockSize, FileEnd, LabelledBlock
from slm_runtime.ray_engine.parts import Part, PartError, write_parts
from slm_runtime.ray_engine.reading import BlockReader
from slm_runtime.ray_engine.storage import Storage
from slm_runtime.ray_engine.worker import BlockLabeller, WorkerSetup, label_rows
from slm_runtime.records import Ticket
from slm_runtime.task import Task

LABELS = ("--labels", "billing,technical,account")
TASK = Task(("billing", "technical", "account"))
WHOLE = BlockSize(4096, 10**9)  # a block is a window of the local run: even the last bits are equal
NAMES = [
    "t.csv",
    "t.tsv",
    "t.jsonl",
    "zipped.csv.gz",
    "zipped.ndjson.gz",
    "t.parquet",
    "wide.csv",
    "header.csv",
    "empty.jsonl",
]


def write_inputs(folder: Path) -> None:
    """The same 100 tickets in every format, with rows that fail, and files without rows."""
    texts = [f"ticket {row} " + "please help " * (row % 7) for row in range(100)]
    texts[7], texts[50] = " ", 'she said "no"'
    rows = [{"id": f"t{row}", "text": text, "town": "Zürich"} for row, text in enumerate(texts)]
    lines = "".join(json.dumps(row) + "\n" for row in rows) + "\n\n{broken\n"
    quoted = ["id,text,town\n"] + [f'{r["id"]},"{r["text"].replace(chr(34), 2 * chr(34))}",{r["town"]}\n' for r in rows]
    folder.mkdir()
    (folder / "t.csv").write_text("".join(quoted) + "\nx,y,z,too many\n")
    (folder / "t.tsv").write_text("".join(quoted).replace(",", "\t"))
    (folder / "wide.csv").write_bytes("".join(quoted).encode("utf-16"))
    (folder / "t.jsonl").write_text(lines)
    (folder / "zipped.csv.gz").write_bytes(gzip.compress("".join(quoted).encode()))
    (folder / "zipped.ndjson.gz").write_bytes(gzip.compress(lines.encode()))
    pq.write_table(pa.Table.from_pylist(rows), folder / "t.parquet", row_group_size=30)
    (folder / "header.csv").write_text("id,text,town\n")
    (folder / "empty.jsonl").write_text("")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stages") / "in"
    write_inputs(made)
    return made


@pytest.fixture
def elsewhere(tmp_path: Path) -> Storage:
    """A filesystem that is not this machine's, as far as the code can tell; it is removed and written as a store is."""
    (tmp_path / "bucket").mkdir()
    return Storage(fs.SubTreeFileSystem(str(tmp_path / "bucket"), fs.LocalFileSystem()), "labels")


def reader_of(storage: Storage, size: BlockSize = WHOLE, output_format: str = "jsonl") -> BlockReader:
    return BlockReader(storage, size, "text", None, None, None, None, all_columns=output_format in ("csv", "tsv"))


def setup_of(bundle: Path, output_format: str = "jsonl", digest: str | None = None) -> WorkerSetup:
    digest = digest or Classifier.load(bundle).bundle.manifest.digest
    return WorkerSetup(str(bundle), digest, "cpu", "fp32", 1, TASK, RunOptions(), output_format, spreadsheet_safe=False)


def run_stages(bundle: Path, reader: BlockReader, output: Storage, names: list[str], output_format: str) -> list[Part]:
    labeller = BlockLabeller(setup_of(bundle, output_format))
    blocks = (labeller.label(block) for file, name in enumerate(names) for block in reader.blocks(file, name))
    parts = [f"{name}.{output_format}" for name in names]
    results = [part for _, part in write_parts(blocks, output, parts, output_format, lambda _: None)]
    assert all(isinstance(part, Part) for part in results), results
    return results


@pytest.mark.parametrize("output_format", ["jsonl", "csv", "tsv", "parquet"])
def test_parts_are_the_local_outputs_byte_for_byte(
    run, bundle: Path, folder: Path, elsewhere: Storage, tmp_path: Path, output_format: str
) -> None:
    shutil.copytree(folder, tmp_path / "bucket" / "in")
    reader = reader_of(Storage(elsewhere.filesystem, "in"), output_format=output_format)
    parts = run_stages(bundle, reader, elsewhere, NAMES, output_format)
    for name, part in zip(NAMES, parts, strict=True):
        local = tmp_path / f"local.{output_format}"
        outcome = run("classify", bundle, "-i", folder / name, "-o", local, *LABELS, "--threads", 1, "--overwrite")
        assert outcome.code == bool(part.counts.errors), outcome.err
        record = json.loads(Path(f"{local}.run.json").read_text())
        assert elsewhere.read(f"{name}.{output_format}") == local.read_bytes(), name
        assert (part.counts.rows, part.counts.errors) == (record["counts"]["rows"], record["counts"]["errors"])
        assert part.end == FileEnd(record["blank_lines"], record["replaced_characters"])
    assert not list((tmp_path / "bucket").rglob(".*"))


def test_small_blocks_change_no_label(run, bundle: Path, folder: Path, elsewhere: Storage) -> None:
    reader = reader_of(Storage.at(str(folder)), BlockSize(4096, 1))
    assert len(list(reader.blocks(0, "t.jsonl"))) == 101 // MIN_ROWS + 2
    run_stages(bundle, reader, elsewhere, ["t.jsonl"], "jsonl")
    lines = (elsewhere.read("t.jsonl.jsonl") or b"").decode().splitlines()
    local = run("classify", bundle, "-i", folder / "t.jsonl", *LABELS).records
    for line, record in zip(lines, local, strict=True):
        ours = json.loads(line)
        assert (ours["row"], ours["id"], ours["label"], ours["error"]) == (
            record["row"],
            record["id"],
            record["label"],
            record["error"],
        )
        assert (ours["score"] or 0) == pytest.approx(record["score"] or 0, abs=1e-5)


@pytest.mark.parametrize("damage", ["quote", "parquet", "gone", "gzip", "header"])
def test_a_file_that_cannot_be_read_ends_with_its_reason(tmp_path: Path, damage: str) -> None:
    name, content, reason = {
        "quote": ("a.csv", b'text\nfine\n"never closed\n', "quote opened on line 3 never closed"),
        "parquet": ("a.parquet", b"PAR1 not", "cannot be read"),
        "gone": ("a.csv", None, "cannot be read: No such file"),
        "gzip": ("a.csv.gz", gzip.compress(b"text\n" + b"fine\n" * 9999)[:40], "cannot be read"),
        "header": ("a.csv", b"", "empty, expected a header"),
    }[damage]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    away = Storage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "")
    for storage in (Storage.at(str(tmp_path)), away):
        *_, last = reader_of(storage).blocks(0, name)
        assert last.end is not None
        assert last.end.error is not None
        assert name in last.end.error
        assert reason in last.end.error or (damage == "gone" and "Failed to open" in last.end.error)


def test_long_texts_close_a_block_however_few_they_are() -> None:
    tickets = [Ticket(row, None, "x" * 40_000_000) for row in range(3)]
    assert [len(block) for block in WHOLE.cut(tickets)] == [2, 1]


def test_every_worker_gets_blocks_and_none_is_tiny() -> None:
    tickets = [Ticket(row, None, "x" * 60) for row in range(300)]
    assert [len(block) for block in BlockSize.of_job(300 * 60, 2).cut(tickets)] == [38] * 7 + [34]
    assert [len(block) for block in BlockSize.of_job(300 * 60, 1000).cut(tickets)] == [MIN_ROWS] * 9 + [12]
    assert [len(block) for block in BlockSize.of_job(10**9, 2).cut(tickets)] == [300]


class FailingRunner:
    """Fails on a text as a model would that has a bug; `batch_fails` for batches alone."""

    def __init__(self, bundle: Path, poison: str) -> None:
        self._runner = Classifier.load(bundle).prepare(TASK)
        self._poison = poison

    def run(self, tickets: list[Ticket]) -> Iterator[object]:
        if any(self._poison in (ticket.text or "") for ticket in tickets):
            raise MemoryError("no room for the bias")
        yield from self._runner.run(tickets)


def test_one_row_that_breaks_the_model_fails_alone(bundle: Path) -> None:
    tickets = [Ticket(row, f"t{row}", text) for row, text in enumerate(["fine", "poison", "good"])]
    predictions = label_rows(FailingRunner(bundle, "poison"), tickets)
    assert [prediction.id for prediction in predictions] == ["t0", "t1", "t2"]
    assert predictions[1].error == "cannot be scored: MemoryError: no room for the bias"
    assert predictions[0].label is not None
    assert predictions[2].label is not None


def test_a_model_that_fails_on_every_row_is_not_the_rows_fault(bundle: Path) -> None:
    with pytest.raises(MemoryError):
        label_rows(FailingRunner(bundle, ""), [Ticket(0, None, "a"), Ticket(1, None, "b")])


def labelled(bundle: Path, folder: Path) -> list[LabelledBlock]:
    labeller = BlockLabeller(setup_of(bundle))
    reader = reader_of(Storage.at(str(folder)), BlockSize(40, 1))
    return [labeller.label(block) for file in (0, 1) for block in reader.blocks(file, "t.jsonl")]


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_lost_block_costs_its_file_and_no_other(bundle: Path, folder: Path, elsewhere: Storage, lost: int) -> None:
    blocks = labelled(bundle, folder)
    first = [block for block in blocks if block.file == 0]
    del blocks[blocks.index(first[lost])]
    results = dict(write_parts(blocks, elsewhere, ["a.jsonl", "b.jsonl"], "jsonl", lambda _: None))
    assert isinstance(results[0], PartError)
    assert "lost" in str(results[0])
    assert isinstance(results[1], Part)
    assert [file.name for file in elsewhere.files()] == ["b.jsonl"]


def test_a_part_made_twice_is_replaced_by_the_same_bytes(bundle: Path, folder: Path, tmp_path: Path) -> None:
    output = Storage.at(str(tmp_path / "out"))
    blocks = labelled(bundle, folder)
    parts = ["a.jsonl", "b.jsonl"]
    list(write_parts(blocks, output, parts, "jsonl", lambda _: None))
    before, inode = output.read("a.jsonl"), (tmp_path / "out" / "a.jsonl").stat().st_ino
    list(write_parts(blocks, output, parts, "jsonl", lambda _: None))
    assert output.read("a.jsonl") == before
    assert (tmp_path / "out" / "a.jsonl").stat().st_ino != inode  # renamed over it, never rewritten in place


def test_a_part_that_cannot_be_written_ends_the_job(bundle: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where the folder should be")
    with pytest.raises(OutputError, match="cannot be written"):
        list(
            write_parts(
                labelled(bundle, folder), Storage.at(str(tmp_path / "out")), ["a", "b"], "jsonl", lambda _: None
            )
        )


def test_another_bundle_on_a_worker_ends_the_job(bundle: Path, folder: Path, elsewhere: Storage) -> None:
    labeller = BlockLabeller(setup_of(bundle, digest="f" * 64))
    blocks = [labeller.label(block) for block in reader_of(Storage.at(str(folder))).blocks(0, "t.jsonl")]
    with pytest.raises(ArtifactError, match="copy the same bundle to every machine"):
        list(write_parts(blocks, elsewhere, ["a.jsonl"], "jsonl", lambda _: None))
    assert elsewhere.files() == []
