"""Which files a Ray job takes, what their parts are called, and where these may lie."""

from pathlib import Path

import pytest
from pyarrow import fs

from slm_runtime.errors import InputError, OutputError
from slm_runtime.ray_engine.inputs import Selection, check_outside, part_names, select_inputs
from slm_runtime.ray_engine.storage import FileInfo, Storage, redacted, split_query

NAMES = [
    "a.csv",
    "b.jsonl.gz",
    "notes.md",
    ".a.csv.part",
    "_slm_run.json",
    "_old/c.csv",
    "2024/d.parquet",
    "2024/05/e.tsv",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text\n")
    return tmp_path / "in"


def listed(address: str | Path, *, any_ending: bool = False) -> list[str]:
    return [file.name for file in select_inputs(str(address), any_ending=any_ending).list_files()]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["2024/05/e.tsv", "2024/d.parquet", "a.csv", "b.jsonl.gz"]),
        ("/a.csv", ["a.csv"]),
        ("/*.csv", ["a.csv"]),
        ("/*", ["a.csv", "b.jsonl.gz"]),
        ("/**/*.tsv", ["2024/05/e.tsv"]),
        ("/**/*.csv", ["a.csv"]),
        ("/2024/*", ["d.parquet"]),
        ("/20??/*.parquet", ["2024/d.parquet"]),
        ("/_*/*.csv", ["_old/c.csv"]),
        ("/[ab].*", ["a.csv", "b.jsonl.gz"]),
    ],
)
def test_a_folder_a_file_or_a_glob_as_path_or_url(folder: Path, pattern: str, names: list[str]) -> None:
    assert listed(f"{folder}{pattern}") == names
    assert listed(f"file://{folder}{pattern}") == names


def test_with_a_given_format_every_ending_is_read(folder: Path) -> None:
    assert "notes.md" in listed(folder, any_ending=True)
    assert "notes.md" not in listed(folder)


def test_a_name_with_a_wildcard_in_it_is_a_file_first(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("text\n")
    (tmp_path / "a1.csv").write_text("text\n")
    assert listed(tmp_path / "a[1].csv") == ["a[1].csv"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nothing", "not found"),
        ("empty", "no input"),
        ("*.csv", "no input"),
        ("nowhere/*.csv", "no input"),
        ("what://bucket/a.csv", "pyarrow"),
    ],
)
def test_an_input_that_is_none_is_refused(tmp_path: Path, monkeypatch, address: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "readme.md").write_text("")
    with pytest.raises(InputError, match=message):
        listed(address)


def files(*names: str) -> list[FileInfo]:
    return [FileInfo(name, 1, None) for name in names]


def test_a_part_has_the_folder_and_the_stem_of_its_input() -> None:
    names = part_names(files("2024/a.v2.csv", "b.JSONL.GZ", "c.parquet", "export.txt"), "csv")
    assert list(names.values()) == ["2024/a.v2.csv", "b.csv", "c.csv", "export.txt.csv"]


@pytest.mark.parametrize("names", [("a.csv", "a.jsonl"), ("x/a.csv", "x/a.csv.gz")])
def test_two_inputs_with_one_stem_are_refused_by_name(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=f"{names[0]} and {names[1]} would both be written to"):
        part_names(files(*names), "jsonl")


@pytest.mark.parametrize(
    ("pattern", "output", "inside"),
    [
        (None, "in/labels", True),
        (None, "in", True),
        (None, "in/_labels", False),
        (None, "in-labels", False),
        ("*.csv", "in/labels", False),
        ("*.csv", "in", True),
        ("**/*.csv", "in/labels", True),
    ],
)
def test_no_part_may_be_an_input_of_the_next_run(
    tmp_path: Path, pattern: str | None, output: str, inside: bool
) -> None:
    selection = Selection(Storage.at(str(tmp_path / "in")), pattern, any_ending=False)
    place = Storage.at(str(tmp_path / output))
    if inside:
        with pytest.raises(OutputError, match="lies in the input"):
            check_outside(selection, place, ["x/a.csv", "a.csv"])
    else:
        check_outside(selection, place, ["x/a.csv", "a.csv"])


def test_another_filesystem_is_never_inside(tmp_path: Path) -> None:
    selection = Selection(
        Storage(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "in"), None, any_ending=False
    )
    check_outside(selection, Storage.at("in"), ["a.csv"])


def test_secrets_in_a_url_are_not_shown() -> None:
    assert redacted("s3://key:secret@bucket/in?endpoint_override=host:1&x=y") == "s3://bucket/in"
    assert split_query("s3://b/a?.csv?scheme=http") == ("s3://b/a?.csv", "?scheme=http")
    assert split_query("dir/a?.csv?x=1") == ("dir/a?.csv?x=1", "")
