"""C33: a bundle that is not what was exported ends with one line and exit code 4, before anything runs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from slm_runtime.integrity import sha256_of
from slm_runtime.manifest import MANIFEST_FILE, FileRecord

DATA = "decoder-fp32.data"
GRAPH = "decoder-fp32.onnx"


def data_missing(folder: Path) -> None:
    (folder / DATA).unlink()


def data_truncated(folder: Path) -> None:
    os.truncate(folder / DATA, (folder / DATA).stat().st_size - 100)


def data_zeroed(folder: Path) -> None:
    """Same size, same modification time: only the digest can tell."""
    path = folder / DATA
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def newer_format(folder: Path) -> None:
    edit(folder, lambda data: data.update(format_version=99))


def manifest_missing(folder: Path) -> None:
    (folder / MANIFEST_FILE).unlink()


def manifest_torn(folder: Path) -> None:
    path = folder / MANIFEST_FILE
    path.write_text(path.read_text()[:200])


def field_missing(folder: Path) -> None:
    edit(folder, lambda data: data["decoder"].pop("head_dim"))


def file_outside(folder: Path) -> None:
    edit(folder, lambda data: data["files"].update({"../evil": {"size_bytes": 1, "sha256": "0"}}))


def needs_newer_onnxruntime(folder: Path) -> None:
    edit(folder, lambda data: data.update(min_onnxruntime="99.0"))


def newer_ir(folder: Path) -> None:
    change_graph(folder, lambda model: setattr(model, "ir_version", 99))


def newer_opset(folder: Path) -> None:
    change_graph(folder, lambda model: setattr(model.opset_import[0], "version", 99))


def other_outputs(folder: Path) -> None:
    edit(folder, lambda data: data["decoder"].update(num_layers=2))


def tokenizer_gone(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def edit(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / MANIFEST_FILE
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def change_graph(folder: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    """Change the graph and record its new digest: what an export by other tools would leave."""
    path = folder / GRAPH
    model = onnx.load(path, load_external_data=False)
    change(model)
    path.write_bytes(model.SerializeToString())
    record = FileRecord(path.stat().st_size, sha256_of(path))
    edit(folder, lambda data: data["files"].update({GRAPH: vars(record)}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (data_missing, f"{DATA}: missing"),
        (data_truncated, f"{DATA}: "),
        (data_zeroed, f"{DATA}: sha256"),
        (newer_format, "bundle format 99, this version reads format 1"),
        (manifest_missing, "not a bundle"),
        (manifest_torn, "cannot be read"),
        (field_missing, "damaged"),
        (file_outside, "leaves the bundle"),
        (needs_newer_onnxruntime, "needs onnxruntime 99.0 or newer"),
        (newer_ir, "cannot open it"),
        (newer_opset, "cannot open it"),
        (other_outputs, "not those of the manifest"),
        (tokenizer_gone, "tokenizer.json: missing"),
    ],
)
def test_c33_a_damaged_bundle_is_refused_in_one_line(
    run, own_bundle: Path, tmp_path: Path, damage, message: str
) -> None:
    tickets, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    tickets.write_text('{"text": "hello"}\n')
    assert run("classify", own_bundle, "-i", tickets, "--labels", "a,b").code == 0, "intact at first"
    damage(own_bundle)
    outcome = run("classify", own_bundle, "-i", tickets, "-o", output, "--labels", "a,b")
    assert (outcome.code, outcome.out) == (4, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not list(tmp_path.glob("out*")), "nothing half-written"


def test_a_folder_that_is_not_there_is_exit_4(run) -> None:
    outcome = run("inspect", "no/such/bundle")
    assert outcome.code == 4
    assert "no such bundle folder" in outcome.err


def linked_folder(bundle: Path, place: Path) -> Path:
    (place / "link").symlink_to(bundle)
    return place / "link"


def linked_files(bundle: Path, place: Path) -> Path:
    """As a hub cache does it: every file is a link to a blob of another name elsewhere."""
    blobs, folder = place / "blobs", place / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    for number, path in enumerate(bundle.iterdir()):
        shutil.copyfile(path, blobs / str(number))
        (folder / path.name).symlink_to(Path("../blobs") / str(number))
    return folder


def read_only_copy(bundle: Path, place: Path) -> Path:
    folder = Path(shutil.copytree(bundle, place / "moved" / "far away äö"))
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555)
    return folder


@pytest.mark.parametrize("place", [linked_folder, linked_files, read_only_copy])
def test_c33_a_bundle_works_through_links_when_moved_and_when_read_only(
    run, bundle: Path, tmp_path: Path, place: Callable[[Path, Path], Path]
) -> None:
    tickets = tmp_path / "in.jsonl"
    tickets.write_text('{"text": "I was charged twice"}\n')
    argv = ("-i", tickets, "--labels", "billing,technical", "--quiet")
    expected = run("classify", bundle, *argv)
    assert run("classify", place(bundle, tmp_path), *argv) == expected
    assert expected.code == 0


def test_verify_notices_a_tokenizer_that_splits_otherwise(run, own_bundle: Path) -> None:
    path = own_bundle / "golden.json"
    sets = json.loads(path.read_text())
    sets[1]["token_ids"][0][-2] += 1
    path.write_text(json.dumps(sets))
    record = FileRecord(path.stat().st_size, sha256_of(path))
    edit(own_bundle, lambda data: data["files"].update({"golden.json": vars(record)}))
    outcome = run("verify", own_bundle)
    assert outcome.code == 3
    assert "has other tokens here than at export" in outcome.err
