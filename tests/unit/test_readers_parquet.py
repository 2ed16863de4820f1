"""Parquet in: every row comes out once, row group by row group, whatever kind of string holds the text."""

import datetime
import decimal
import io
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slm_runtime import readers_parquet
from slm_runtime.errors import InputError
from slm_runtime.readers import open_tickets
from slm_runtime.records import Ticket

TEXTS = ["first", None, "", "NA", "null", "007", "é😀\r\n\x00", " \u200b", "1e5"]
ERRORS = {1: "missing text: 'text' is null", 2: "empty text", 7: "empty text"}


def write(path: Path, columns: dict[str, pa.Array], group_rows: int = 3, **options: object) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=group_rows, **options)
    return path


def read(path: Path, **options: object) -> list[Ticket]:
    with open_tickets(path, **options) as reader:
        return list(reader)


def read_text(folder: Path, text: pa.Array) -> list[Ticket]:
    return read(write(folder / "t.parquet", {"text": text}))


def not_utf8(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


STRINGS: dict[str, Callable[[list[str | None]], pa.Array]] = {
    "string": lambda texts: pa.array(texts, pa.string()),
    "large_string": lambda texts: pa.array(texts, pa.large_string()),
    "string_view": lambda texts: pa.array(texts, pa.string_view()),
    "dictionary": lambda texts: pa.array(texts).dictionary_encode(),
    "large_dictionary": lambda texts: pa.array(texts, pa.large_string()).dictionary_encode(),
}


@pytest.mark.parametrize("kind", STRINGS)
def test_c26_every_kind_of_string_gives_the_same_tickets(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "t.parquet", {"text": STRINGS[kind](TEXTS), "id": pa.array(range(9))})
    assert pq.ParquetFile(path).metadata.num_row_groups == 3
    expected = [Ticket(row, row, None if row in ERRORS else text, ERRORS.get(row)) for row, text in enumerate(TEXTS)]
    assert read(path) == expected


@pytest.mark.parametrize("kind", STRINGS)
def test_c26_strings_without_the_arrow_schema_are_the_same(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "t.parquet", {"text": STRINGS[kind](["a", None])}, store_schema=False)
    assert [ticket.text for ticket in read(path)] == ["a", None]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (pa.array([["a"]]), "list<"),
        (pa.array([1]), "int64"),
        (pa.array([1.5]), "double"),
        (pa.array([True]), "bool"),
        (pa.array([b"a"]), "binary"),
        (pa.array([b"a"], pa.binary(1)), "fixed_size_binary[1]"),
        (pa.array([{"a": "b"}]), "struct<"),
        (pa.array([1], pa.timestamp("ms")), "timestamp[ms]"),
        (pa.array([1, 1]).dictionary_encode(), "int64"),
        (pa.array([b"a"]).dictionary_encode(), "dictionary<values=binary"),
    ],
)
def test_c26_a_text_column_that_is_no_string_is_refused_by_type(tmp_path: Path, text: pa.Array, kind: str) -> None:
    path = write(tmp_path / "t.parquet", {"text": text, "team": pa.array(["x"] * len(text))})
    with pytest.raises(InputError) as caught:
        open_tickets(path)
    message = str(caught.value)
    assert f"the text column 'text' is {kind}" in message
    assert "'team' string" in message
    assert "--text-column, or cast this one to string" in message


def test_c26_a_column_of_nulls_only_fails_row_by_row(tmp_path: Path) -> None:
    for nulls in (pa.nulls(4), pa.nulls(4, pa.string()), pa.nulls(4, pa.dictionary(pa.int8(), pa.string()))):
        assert [ticket.error for ticket in read_text(tmp_path, nulls)] == [ERRORS[1]] * 4


def test_c26_a_row_group_is_read_when_the_one_before_is_used_up(tmp_path: Path) -> None:
    texts = [letter * 100_000 for letter in "abcd"]
    path = tmp_path / "t.parquet"
    write(path, {"text": pa.array(texts)}, 2, compression="none", use_dictionary=False, write_page_checksum=True)
    second = pq.ParquetFile(path).metadata.row_group(1).column(0)
    with open_tickets(path) as reader:
        tickets = iter(reader)
        assert next(tickets).text == texts[0]
        overwrite(path, second.data_page_offset, bytes(second.total_compressed_size))
        assert next(tickets).text == texts[1]
        with pytest.raises(InputError, match=r"t\.parquet: cannot be read beyond row 2: .*give a whole Parquet file"):
            next(tickets)


def test_long_rows_come_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    column_values = readers_parquet.column_values

    def counted(array: pa.Array) -> list:
        sizes.append(len(array))
        return column_values(array)

    monkeypatch.setattr(readers_parquet, "column_values", counted)
    texts = [f"{row} " + "x" * 2**20 for row in range(20)]
    path = write(tmp_path / "t.parquet", {"text": pa.array(texts)}, group_rows=20)
    assert [ticket.text for ticket in read(path)] == texts
    assert sum(sizes) == 20
    assert max(sizes) <= 8


@pytest.mark.parametrize("num_rows", [0, 1, 255, 256, 257, 1000])
def test_rows_are_counted_across_batches_and_groups(tmp_path: Path, num_rows: int) -> None:
    texts = [f"t{row}" for row in range(num_rows)]
    path = write(tmp_path / "t.parquet", {"text": pa.array(texts, pa.string())}, group_rows=300)
    assert [(ticket.row, ticket.text) for ticket in read(path)] == list(enumerate(texts))


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array(["007", "", None]), ["007", "", None]),
        (pa.array(["007", "007"]).dictionary_encode(), ["007", "007"]),
        (pa.array([7, 2**63], pa.uint64()), [7, 2**63]),
        (pa.array([1.5, None]), [1.5, None]),
        (pa.array([True, False]), [True, False]),
        (pa.array([b"a1", "é".encode()]), ["a1", "é"]),
        (pa.array([b"a1"], pa.binary(2)), ["a1"]),
        (pa.array([decimal.Decimal("1.50")]), ["1.50"]),
        (pa.array([datetime.date(2024, 2, 29)]), ["2024-02-29"]),
        (pa.array([1_700_000_000_123_456_789], pa.timestamp("ns")), ["2023-11-14 22:13:20.123456789"]),
        (pa.array([1_700_000_000], pa.timestamp("ms", "UTC")), ["1970-01-20 16:13:20.000Z"]),
        (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
        (pa.array([uuid.UUID(int=7).bytes], pa.uuid()), ["00000000-0000-0000-0000-000000000007"]),
    ],
)
def test_ids_of_single_values_are_repeated(tmp_path: Path, column: pa.Array, ids: list[object]) -> None:
    tickets = read(write(tmp_path / "t.parquet", {"id": column, "text": pa.array(["a"] * len(column))}))
    assert [ticket.id for ticket in tickets] == ids
    assert [type(ticket.id) for ticket in tickets] == [type(value) for value in ids]
    assert [ticket.error for ticket in tickets] == [None] * len(ids)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([[1], None]), "the id is a list<"),
        (pa.array([{"a": 1}, None]), "the id is a struct<"),
        (pa.array([float("nan"), None]), "the id nan is not a finite number"),
        (pa.array([b"\xff", None]), "the id is not valid utf-8: 0xFF at byte offset 0"),
    ],
)
def test_an_id_that_cannot_be_repeated_is_its_rows_error(tmp_path: Path, column: pa.Array, reason: str) -> None:
    bad, good = read(write(tmp_path / "t.parquet", {"id": column, "text": pa.array(["a", "b"])}))
    assert bad.error is not None
    assert bad.error.startswith(reason)
    assert (bad.id, bad.text) == (None, None)
    assert (good.id, good.text, good.error) == (None, "b", None)


@pytest.mark.parametrize("encode", [lambda array: array, pa.Array.dictionary_encode])
def test_c22_bytes_that_are_not_utf8_fail_one_row(tmp_path: Path, encode: Callable[[pa.Array], pa.Array]) -> None:
    first, bad, surrogate, last = read_text(tmp_path, encode(not_utf8(b"a", b"caf\xe9!", b"\xed\xa0\x80", b"b")))
    assert (first.text, last.text) == ("a", "b")
    assert (bad.text, bad.error) == (
        None,
        "'text' is not valid utf-8: 0xE9 at byte offset 3; write the column as UTF-8",
    )
    assert surrogate.error is not None


def test_a_text_beyond_the_maximum_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_parquet, "MAX_RECORD_CHARS", 10)
    fits, long = read_text(tmp_path, pa.array(["x" * 10, "x" * 11]))
    assert fits.text == "x" * 10
    assert long.error is not None
    assert long.error.startswith("the text has 11 characters, at most 10")


def test_columns_and_ids_are_found_by_name(tmp_path: Path) -> None:
    columns = {"key": pa.array(["k"]), "id": pa.array([1]), "a.b": pa.array(["body"]), "a": pa.array([{"b": "no"}])}
    path = write(tmp_path / "t.PARQUET", columns)
    assert read(path, text_column="a.b") == [Ticket(0, 1, "body")]
    assert read(path, text_column="a.b", id_column="key") == [Ticket(0, "k", "body")]
    moved = path.rename(tmp_path / "t.bin")
    assert read(moved, text_column="key", format="parquet") == [Ticket(0, 1, "k")]


def test_fields_hold_columns_only_when_asked_for(tmp_path: Path) -> None:
    columns = {
        "text": pa.array(["a", None]),
        "gold": pa.array(["x", None]),
        "tags": pa.array([["x"], ["y"]]),
        "n": pa.array([1.5, float("nan")]),
        "ok": pa.array([True, None]),
        "raw": pa.array([b"b\xff", b"c"]),
        "day": pa.array([datetime.date(2024, 2, 29), None]),
    }
    path = write(tmp_path / "t.parquet", columns)
    with open_tickets(path) as reader:
        assert reader.columns == ()
        assert [dict(ticket.fields) for ticket in reader] == [{}, {}]
    with open_tickets(path, keep_columns=["gold"]) as reader:
        assert reader.columns == ()
        assert [dict(ticket.fields) for ticket in reader] == [{"gold": "x"}, {"gold": ""}]
    with open_tickets(path, keep_columns=["gold"], all_columns=True) as reader:
        assert reader.columns == ("text", "gold", "n", "ok", "raw", "day")
        first, second = reader
    assert list(first.fields.values()) == ["a", "x", "1.5", "true", "b\ufffd", "2024-02-29"]
    assert list(second.fields.values()) == ["", "", "NaN", "", "c", ""]
    with pytest.raises(InputError, match=r"the columns \['tags'\] hold lists or structs"):
        open_tickets(path, keep_columns=["tags"])


def test_jsonl_fields_hold_the_keys_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [
        '{"text":"a","gold":"\\ud83d!","n":1.50,"deep":{"k":[null,{}],"é":true}}',
        '{"gold":null,"n":7}',
        "[]",
        '{"text":"a","deep":' + "[" * 400 + "]" * 400 + "}",
        '{"text":"a","gold":1,"gold":2}',
    ]
    path.write_text("\n".join(lines))
    first, second, third, deep, doubled = read(path, keep_columns=["gold", "n", "deep"])
    assert first.fields == {"gold": "\ufffd!", "n": "1.5", "deep": '{"k": [null, {}], "é": true}'}
    assert (second.text, second.fields) == (None, {"gold": "", "n": "7", "deep": ""})
    assert third.fields == {}
    assert (deep.error is None) == (deep.fields.get("deep") == "[" * 400 + "]" * 400)
    assert doubled.fields["gold"] == "2"
    assert all(ticket.fields == {} for ticket in read(path))


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ({"text_column": "body"}, ["no column 'body'", "'text' string, 'id' int64", "--text-column"]),
        ({"id_column": "key"}, ["no column 'key'", "'id' int64", "--id-column"]),
        ({"keep_columns": ["gold"]}, ["no column 'gold'"]),
        ({"encoding": "cp1252"}, ["leave out --encoding"]),
        ({"delimiter": ";"}, ["leave out --encoding and --delimiter"]),
    ],
)
def test_options_that_do_not_fit_the_file_stop_the_job(
    tmp_path: Path, options: dict[str, object], fragments: list[str]
) -> None:
    path = write(tmp_path / "t.parquet", {"text": pa.array(["a"]), "id": pa.array([1])})
    with pytest.raises(InputError) as caught:
        open_tickets(path, **options)
    assert all(fragment in str(caught.value) for fragment in fragments), caught.value


def test_a_column_named_twice_is_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array([1])], names=["text", "text", "n"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"columns named twice: \['text'\]; the file has: 'text' string, 'text' str"):
        open_tickets(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("name", "format_", "reason"),
    [
        ("-", "parquet", "standard input: Parquet is read from its end; give a regular file"),
        ("/dev/null", "parquet", "/dev/null: Parquet is read from its end"),
        ("t.parquet.gz", None, "gunzip the file first"),
        ("t.gz", "parquet", "gunzip the file first"),
        ("absent.parquet", None, "cannot be read: No such file"),
        ("folder.parquet", None, "cannot be read: Is a directory"),
        ("t.xlsx", None, r"or one of these with \.gz, or \.parquet"),
    ],
)
def test_an_input_that_is_no_parquet_file_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, format_: str | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.parquet").mkdir()
    with pytest.raises(InputError, match=reason):
        open_tickets(name, format=format_)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def test_a_file_that_is_cut_or_something_else_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"text": pa.array(["a" * 50, "b" * 50])})
    whole = path.read_bytes()
    for data in (b"", b"text\na\n", b"PAR1", whole[:-1], whole[: len(whole) // 2], whole[50:], whole[:-4] + b"PARE"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"t\.parquet: cannot be read: .*give a whole Parquet file"):
            read(path)


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_a_damaged_page_stops_the_job_after_the_rows_before_it(tmp_path: Path, compression: str) -> None:
    texts = [f"ticket {row} " + "words " * row for row in range(6)]
    path = tmp_path / "t.parquet"
    write(path, {"text": pa.array(texts)}, compression=compression, use_dictionary=False, write_page_checksum=True)
    second = pq.ParquetFile(path).metadata.row_group(1).column(0)
    overwrite(path, second.data_page_offset + second.total_compressed_size - 4, b"\xff")
    delivered: list[Ticket] = []
    with open_tickets(path) as reader, pytest.raises(InputError, match="cannot be read beyond row 3"):
        delivered.extend(reader)
    assert [ticket.text for ticket in delivered] == texts[:3]


def problem_of(path: Path) -> str:
    """The message about a file that cannot be read to its end, without the path; else ""."""
    try:
        read(path)
    except InputError as error:
        return str(error).removeprefix(f"{path}: ")
    return ""


def test_any_flipped_byte_gives_tickets_or_one_input_error(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.parquet", {"id": pa.array(range(4)), "text": STRINGS["dictionary"](["a", "b", "a", None])}
    )
    whole = path.read_bytes()
    problems = []
    for position in range(0, len(whole), 5):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        problems.append(problem_of(path))
    assert 0 < sum(map(bool, problems)) < len(problems)
    assert not any("\n" in problem for problem in problems)


def test_rows_that_are_missing_never_go_unnoticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", {"text": pa.array(["a", "b", "c"])}, store_schema=False)
    whole = path.read_bytes()

    def problem_with_one_more_at(*positions: int) -> str:
        # Thrift writes a small number n as the byte 2n.
        path.write_bytes(bytes((byte + 2 * (at in positions)) % 256 for at, byte in enumerate(whole)))
        return problem_of(path)

    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    problems = {position: problem_with_one_more_at(position) for position in range(footer, len(whole) - 8)}
    (in_file,) = [at for at, problem in problems.items() if "row groups hold 3 rows, the file says 4" in problem]
    (in_group,) = [at for at, problem in problems.items() if "row groups hold 4 rows, the file says 3" in problem]
    assert "beyond row 3: row group 1 holds 3 rows, the file says 4" in problem_with_one_more_at(in_file, in_group)


def test_the_file_is_closed_after_use_and_after_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", {"text": pa.array(["a"])})
    opened: list[io.BufferedReader] = []
    real_open = Path.open

    def open_and_note(self: Path, *args: str) -> io.BufferedReader:
        opened.append(real_open(self, *args))
        return opened[-1]

    monkeypatch.setattr(Path, "open", open_and_note)
    assert len(read(path)) == 1
    with pytest.raises(InputError):
        open_tickets(path, text_column="body")
    assert [stream.closed for stream in opened] == [True, True]


def test_without_pyarrow_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.parquet", {"text": pa.array(["a"])})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"reading Parquet needs pyarrow .*pip install 'slm-runtime\[parquet\]'"):
        open_tickets(path)
