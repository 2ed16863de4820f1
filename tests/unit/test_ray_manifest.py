"""The manifest of a Ray job: what may be continued, what may be replaced, and what is never touched."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from slm_runtime.errors import InputError, OutputError, SlmError
from slm_runtime.options import RunCounts
from slm_runtime.ray_engine.blocks import FileEnd
from slm_runtime.ray_engine.counting import add, from_json, take
from slm_runtime.ray_engine.job_manifest import MANIFEST_FILE, JobManifest, open_job
from slm_runtime.ray_engine.parts import Part
from slm_runtime.ray_engine.storage import FileInfo, Storage

FILES = [FileInfo("a.csv", 10, 1), FileInfo("b.csv", 20, 1)]
IDENTITY = {"model": "m", "task": "t", "limit": None}


def counts(rows: int) -> RunCounts:
    made = RunCounts(rows=rows, errors=1, labels={"a": rows - 1})
    made.note_call(0.5, 7, 8, 4)
    return made


@pytest.fixture
def output(tmp_path: Path) -> Storage:
    return Storage.at(str(tmp_path / "out"))


@pytest.fixture
def half_done(output: Storage, tmp_path: Path) -> JobManifest:
    job = open_job(output, dict(IDENTITY), FILES, resume=False, overwrite=False)
    with output.whole_file("a.jsonl") as stream:
        stream.write(b"{}\n")
    job.complete("a.jsonl", FILES[0], Part(counts(3), 2, FileEnd(4, 5)))
    return job


def test_counts_are_taken_added_and_survive_json() -> None:
    running, total = counts(3), counts(2)
    taken = take(running)
    assert (taken, running) == (counts(3), RunCounts())
    add(total, taken)
    assert (total.rows, total.errors, total.labels) == (5, 2, {"a": 3})
    assert (total.model_s, total.call_sizes, total.real_by_length) == (1.0, {8: 2}, {4: 14})
    assert from_json(json.loads(json.dumps(vars(total)))) == total


def test_a_job_goes_on_where_it_was(output: Storage, half_done: JobManifest) -> None:
    again = open_job(output, dict(IDENTITY), FILES, resume=True, overwrite=False)
    assert list(again.parts) == ["a.jsonl"]
    assert (again.counts, again.num_blank, again.num_replaced, again.num_low_mass) == (counts(3), 4, 5, 2)


def test_a_job_without_any_part_is_simply_started_anew(output: Storage) -> None:
    open_job(output, dict(IDENTITY), FILES, resume=False, overwrite=False).save()
    for resume in (False, True):
        again = open_job(output, IDENTITY | {"task": "other"}, FILES[:1], resume=resume, overwrite=False)
        assert (again.identity["task"], again.files) == ("other", FILES[:1])


def test_files_that_came_later_are_not_part_of_the_job(output: Storage, half_done: JobManifest) -> None:
    again = open_job(output, dict(IDENTITY), [*FILES, FileInfo("c.csv", 1, 1)], resume=True, overwrite=False)
    assert again.files == FILES


def test_an_input_without_a_part_may_be_repaired(output: Storage, half_done: JobManifest) -> None:
    repaired = FileInfo("b.csv", 21, 2)
    again = open_job(output, dict(IDENTITY), [FILES[0], repaired], resume=True, overwrite=False)
    assert again.files == [FILES[0], repaired]


def test_an_input_that_changed_after_its_part_is_named(output: Storage, half_done: JobManifest) -> None:
    with pytest.raises(InputError, match=r"a\.csv: has changed since a\.jsonl was made of it \(10 bytes then, 11 now"):
        open_job(output, dict(IDENTITY), [FileInfo("a.csv", 11, 1), FILES[1]], resume=True, overwrite=False)


def test_a_part_that_vanished_is_named(output: Storage, half_done: JobManifest) -> None:
    output.delete("a.jsonl")
    with pytest.raises(InputError, match=r"a\.jsonl is recorded as complete and is not there"):
        open_job(output, dict(IDENTITY), FILES, resume=True, overwrite=False)


def test_another_configuration_is_named(output: Storage, half_done: JobManifest) -> None:
    with pytest.raises(InputError, match="task was t, is other; limit was not given, is 3"):
        open_job(output, IDENTITY | {"task": "other", "limit": 3}, FILES, resume=True, overwrite=False)


def test_a_job_is_not_continued_or_replaced_unasked(output: Storage, half_done: JobManifest) -> None:
    with pytest.raises(OutputError, match="1 of 2 parts complete; continue it with --resume"):
        open_job(output, dict(IDENTITY), FILES, resume=False, overwrite=False)
    with pytest.raises(InputError, match="give one of them"):
        open_job(output, dict(IDENTITY), FILES, resume=True, overwrite=True)


def test_overwrite_removes_old_parts_that_it_did_not_replace_in_the_end(
    output: Storage, half_done: JobManifest
) -> None:
    new = open_job(output, dict(IDENTITY), FILES[1:], resume=False, overwrite=True)
    new.save()
    assert output.read("a.jsonl") == b"{}\n"
    again = open_job(output, dict(IDENTITY), FILES[1:], resume=True, overwrite=False)
    again.complete("b.jsonl", FILES[1], Part(counts(1), 0, FileEnd()))
    again.remove_left_over(list(again.parts))
    assert output.read("a.jsonl") is None


@pytest.mark.parametrize("flags", [{}, {"resume": True}, {"overwrite": True}])
def test_a_folder_of_somebody_else_is_left_alone(output: Storage, flags: dict[str, bool]) -> None:
    with output.whole_file("thesis.jsonl") as stream:
        stream.write(b"precious")
    with pytest.raises(OutputError, match=r"holds 1 files \(thesis\.jsonl\)"):
        open_job(output, dict(IDENTITY), FILES, **{"resume": False, "overwrite": False} | flags)
    assert output.read("thesis.jsonl") == b"precious"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 99}', b'{"format": 1}', b"\xff"])
def test_a_damaged_manifest_is_no_traceback(output: Storage, content: bytes) -> None:
    with output.whole_file(MANIFEST_FILE) as stream:
        stream.write(content)
    with pytest.raises(SlmError, match="cannot be used"):
        open_job(output, dict(IDENTITY), FILES, resume=True, overwrite=False)


def test_a_part_that_fails_midway_keeps_what_was_there(output: Storage) -> None:
    with output.whole_file("x/a.jsonl") as stream:
        stream.write(b"old")
    with suppress(ZeroDivisionError), output.whole_file("x/a.jsonl") as stream:
        stream.write(b"new" * (1 // 0))
    assert [file.name for file in output.files()] == ["x/a.jsonl"]
    assert output.read("x/a.jsonl") == b"old"
