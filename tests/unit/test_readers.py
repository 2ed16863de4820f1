"""Tickets in: every input row comes out once, as it was written or with the reason why it cannot be used."""

import gzip
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slm_runtime import lines as lines_module
from slm_runtime.errors import InputError
from slm_runtime.readers import open_tickets
from slm_runtime.records import Ticket


class DripFeed(io.RawIOBase):
    """A pipe that hands out at most `step` bytes per read."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = io.BytesIO(data)
        self._step = step

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._data.readinto(buffer[: self._step])


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes, step: int = 4096) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(DripFeed(data, step))))


def read(folder: Path, name: str, data: bytes, **options: str) -> list[Ticket]:
    path = folder / name
    path.write_bytes(data)
    with open_tickets(path, **options) as reader:
        return list(reader)


def texts(tickets: list[Ticket]) -> list[str | None]:
    return [ticket.text for ticket in tickets]


# A record whose text holds what line splitters trip over, and its CSV form.
ODD_TEXT = 'one\r\ntwo\rthree "quoted", \u2028 \x85 \x0c end'
ODD_FIELD = ('"' + ODD_TEXT.replace('"', '""') + '"').encode()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b'id,text\n7,"a, b"\n'),
        ("t.csv", b'\xef\xbb\xbfid;text\r\n7;"a, b"\r\n'),
        ("t.csv", b"id;text;x, y, z\n7;a, b;\n"),
        ("t.csv", "\ufeffid\ttext\r\n7\ta, b\r\n".encode("utf-16-le")),
        ("t.csv", '\ufeffid,text\n7,"a, b"\n'.encode("utf-16-be")),
        ("t.csv", b"sep=;\r\nid;text\r\n7;a, b\r\n"),
        ("t.csv", b'\xef\xbb\xbf"sep=|"\nid|text\n7|a, b\n'),
        ("t.TSV", b"id\ttext\n7\ta, b"),
        ("t.csv.gz", gzip.compress(b'id,text\n7,"a, b"\n')),
        ("t.jsonl", b'\xef\xbb\xbf{"id": "7", "text": "a, b"}'),
        ("t.ndjson", b'{"id": "7", "text": "a, b"}\r\n'),
        ("t.jsonl.gz", gzip.compress('\ufeff{"id": "7", "text": "a, b"}\n'.encode("utf-16-le"))),
    ],
)
def test_c22_each_format_encoding_and_delimiter_gives_the_same_ticket(tmp_path: Path, name: str, data: bytes) -> None:
    (ticket,) = read(tmp_path, name, data)
    assert (ticket.row, ticket.id, ticket.text, ticket.error) == (0, "7", "a, b", None)


def test_csv_tickets_keep_the_columns_as_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"ticket,body,team\n007,hello,\n008,bye\n")
    with open_tickets(path, text_column="body", id_column="ticket") as reader:
        assert reader.columns == ("ticket", "body", "team")
        first, second = reader
    assert first.fields == {"ticket": "007", "body": "hello", "team": ""}
    assert (second.id, second.text, second.fields) == ("008", "bye", {"ticket": "008", "body": "bye"})


@pytest.mark.parametrize(
    ("data", "options", "fragments"),
    [
        (b"id,body\n", {}, ["no column 'text'", "'id', 'body'"]),
        (b"text\n", {"id_column": "key"}, ["no column 'key'", "'text'"]),
        (b"id;text\n1;a\n", {"delimiter": ","}, ["no column 'text'", "'id;text'", "--delimiter"]),
        (b'"id;text"\n', {}, ["'id;text'"]),
        (b"text,id,text\n", {}, ["named twice", "['text']"]),
        (b"te\xffxt,id\n", {}, ["line 1", "0xFF", "byte offset 2", "--encoding"]),
        (b"", {}, ["empty", "header"]),
        (b"id,text\r1,a\r", {}, ["carriage return outside quotes"]),
        (b"id,text\n", {"encoding": "latin-99"}, ["latin-99", "--encoding"]),
        (b"id,text\n", {"encoding": "hex"}, ["hex", "--encoding"]),
        (b"id,text\n", {"delimiter": ",,"}, ["delimiter ',,'"]),
    ],
)
def test_c22_a_header_that_cannot_be_used_stops_the_job(
    tmp_path: Path, data: bytes, options: dict[str, str], fragments: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, "t.csv", data, **options)
    assert all(fragment in str(caught.value) for fragment in fragments), caught.value


def test_c22_cp1252_needs_encoding_and_then_reads_cleanly(tmp_path: Path) -> None:
    data = b'text,id\nfine,1\n"two\nit\x92s",2\nfine,3\n'
    good, bad, last = read(tmp_path, "t.csv", data)
    assert (good.text, last.text) == ("fine", "fine")
    assert (bad.id, bad.text) == ("2", None)
    assert bad.error is not None
    assert bad.error.startswith("line 4: 0x92 at byte offset 2 ")
    assert "--encoding" in bad.error
    assert read(tmp_path, "t.csv", data, encoding="cp1252")[1].text == "two\nit\u2019s"


def test_c22_utf16_damage_fails_one_row_and_a_cut_file_stops(tmp_path: Path) -> None:
    data = "\ufefftext\nok\n\ud83d!\nok\n".encode("utf-16-le", "surrogatepass")
    assert texts(read(tmp_path, "t.csv", data)) == ["ok", None, "ok"]
    with pytest.raises(InputError, match="beyond line"):
        read(tmp_path, "t.csv", data[:-1])


@pytest.mark.parametrize("shift", range(-3, 3))
def test_c23_line_breaks_in_quotes_survive_a_block_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    head = b'id,text\r\n0,"'
    padding = b"x" * (2**20 + shift - len(head))
    data = head + padding + b'\r\n\r""y"""\r\n' + b"".join(b"%d,%b\r\n" % (i, ODD_FIELD) for i in range(1, 500))
    expected = [padding.decode() + '\r\n\r"y"', *[ODD_TEXT] * 499]
    assert texts(read(tmp_path, "t.csv", data)) == expected
    pipe_in(monkeypatch, data)
    with open_tickets("-", format="csv") as reader:
        assert texts(list(reader)) == expected


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_c23_a_pipe_of_single_bytes_gives_the_same_tickets(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    record = json.dumps({"text": ODD_TEXT + "é😀"}, ensure_ascii=False).encode() + b"\n"
    data = record * 3 if form == "jsonl" else b"text\n" + (ODD_FIELD[:-1] + 'é😀"\n'.encode()) * 3
    pipe_in(monkeypatch, data, step=1)
    with open_tickets("-", format=form) as reader:
        assert texts(list(reader)) == [ODD_TEXT + "é😀"] * 3


def test_c29_stdin_is_utf8_jsonl_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe_in(monkeypatch, b'{"id":1,"text":"caf\xe9"}\n{"id":2,"text":"caf\xc3\xa9"}\n')
    with open_tickets("-") as reader:
        bad, good = reader
    assert (bad.id, bad.text) == (1, None)
    assert bad.error is not None
    assert bad.error.startswith("line 1: 0xE9 at byte offset 19 ")
    assert good.text == "café"
    assert not sys.stdin.buffer.closed


def test_c29_a_ticket_is_delivered_before_the_next_line_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneLineThenNothing(DripFeed):
        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            size = super().readinto(buffer)
            assert size, "the reader waits for the end of the input"
            return size

    stdin = SimpleNamespace(buffer=io.BufferedReader(OneLineThenNothing(b'{"text":"now"}\n', 4096)))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert next(iter(open_tickets("-"))).text == "now"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1,2]", "an array, expected a JSON object"),
        (b"null", "null, expected a JSON object"),
        (b'{"id":3,"text":', "not valid JSON"),
        (b'{"id":4}', "missing text: 'text' is not in the object"),
        (b'{"text":null}', "missing text: 'text' is null"),
        (b'{"text":7}', "'text' is a number"),
        (b'{"text":NaN}', "'text' is a number"),
        (b'{"text":{"a":1}}', "'text' is an object"),
        (b'{"text":"a","text":"b"}', "the key 'text' is there 2 times"),
        (b'{"id":1,"id":2,"text":"a"}', "the key 'id' is there 2 times"),
        (b'{"id":[1],"text":"a"}', "the id is an array"),
        (b'{"id":1e999,"text":"a"}', "the id inf is not a finite number"),
        (b'{"text":"a"} {"text":"b"}', "not valid JSON"),
        (b'{"text":' + b"[" * 100_000, "not usable JSON"),
        (b'{"text":"a","n":' + b"1" * 5000 + b"}", "not usable JSON"),
        (b'{"text":"\xff"}', "0xFF at byte offset 9 of the line is not valid utf-8"),
        (b'{"text":""}', "empty text"),
    ],
)
def test_c24_a_bad_line_fails_alone_and_names_itself(tmp_path: Path, line: bytes, reason: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"id":0,"text":"a"}\n\n \r\n' + line + b'\n{"id":2,"text":"b\xe2\x80\xa8c"}')
    with open_tickets(path) as reader:
        first, bad, last = reader
        assert reader.num_blank == 2
    assert [ticket.row for ticket in (first, bad, last)] == [0, 1, 2]
    assert (first.text, bad.text, last.text) == ("a", None, "b\u2028c")
    assert bad.error is not None
    assert bad.error.startswith(f"line 4: {reason}"), bad.error


@pytest.mark.parametrize("ticket_id", ["007", 7, 1.5, True, None, 2**70])
def test_jsonl_ids_keep_their_type(tmp_path: Path, ticket_id: object) -> None:
    (ticket,) = read(tmp_path, "t.jsonl", json.dumps({"id": ticket_id, "text": "a"}).encode())
    assert ticket.id == ticket_id
    assert type(ticket.id) is type(ticket_id)


def test_jsonl_row_without_the_id_column_asked_for_fails(tmp_path: Path) -> None:
    without, having = read(tmp_path, "t.jsonl", b'{"text":"a"}\n{"key":1,"text":"a"}\n', id_column="key")
    assert without.error == "line 1: the key 'key' is there 0 times, expected once"
    assert (having.id, having.error) == (1, None)


def test_c21_half_a_surrogate_pair_is_replaced_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(rb'{"id":"\udfff","text":"ok \ud83d end"}' + b"\n" + rb'{"text":"\ud83d\ude00 \u0000"}')
    with open_tickets(path) as reader:
        half, pair = reader
        assert reader.num_replaced == 1
    assert (half.id, half.text, half.error) == ("\ufffd", "ok \ufffd end", None)
    assert pair.text == "😀 \x00"


def test_c21_nul_in_csv_reaches_the_text(tmp_path: Path) -> None:
    assert texts(read(tmp_path, "t.csv", b"text\na\x00b\n")) == ["a\x00b"]


def test_c26_words_that_mean_nothing_elsewhere_are_text(tmp_path: Path) -> None:
    words = ["NA", "null", "None", "nan", "n/a", "true", "007", "1e5", " padded "]
    assert texts(read(tmp_path, "t.csv", ("text\n" + "\n".join(words)).encode())) == words


@pytest.mark.parametrize("blank", ["", "   ", "\n\t", "\u200b", " \ufeff\u2060\u00a0"])
def test_c20_blank_text_has_one_status_in_every_format(tmp_path: Path, blank: str) -> None:
    (from_csv,) = read(tmp_path, "t.csv", f'id,text\n1,"{blank}"\n'.encode())
    (from_jsonl,) = read(tmp_path, "t.jsonl", json.dumps({"text": blank}).encode())
    assert (from_csv.text, from_csv.error) == (None, "line 2: empty text")
    assert (from_jsonl.text, from_jsonl.error) == (None, "line 1: empty text")


def test_rows_with_the_wrong_number_of_fields_fail_alone(tmp_path: Path) -> None:
    many, few, good = read(tmp_path, "t.csv", b'id,text\n1,"a\nb",c\n2\n\n3,ok\n')
    assert many.error is not None
    assert many.error.startswith("line 2: 3 fields, expected 2")
    assert few.error == "line 4: missing text: 1 of 2 fields"
    assert (good.row, good.text) == (2, "ok")


def many_rows(row_57: bytes, other: bytes) -> bytes:
    return b"id,text\n" + b"".join(b"%d,%b\n" % (i, row_57 if i == 57 else other) for i in range(1, 10_001))


@pytest.mark.parametrize("other", [b"fine", b'"fine"', b'"fine, ""really"""', b'fine 5" tape'])
@pytest.mark.parametrize("giant", [b"", b"x" * 200_000])
def test_c28_a_stray_quote_stops_the_job_at_its_line(tmp_path: Path, other: bytes, giant: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(many_rows(b'"stray' + giant, other))
    delivered: list[Ticket] = []
    with (
        open_tickets(path) as reader,
        pytest.raises(InputError, match="quote opened on line 58 never closed"),
    ):
        delivered.extend(reader)
    assert len(delivered) == 56
    assert all(ticket.error is None and ticket.text != "" for ticket in delivered)


def test_c28_the_line_named_is_the_quotes_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="quote opened on line 4 never closed"):
        read(tmp_path, "t.csv", b'a,b,text\n1,"two\n\nlines","stray\n2,x,y\n')


def test_c28_a_giant_ticket_is_read(tmp_path: Path) -> None:
    log = "line of a log\n" * 15_000
    assert len(log) > 200_000
    short_log = log[: 14 * 9_000]
    assert texts(read(tmp_path, "t.csv", f'text\n"{short_log}"\n{"x" * 200_000}\n'.encode())) == [
        short_log,
        "x" * 200_000,
    ]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("t.csv", b"text\nok\n" + b"x" * 101 + b"\n", "record that starts on line 3 is longer"),
        ("t.csv", b'text\nok\n"' + b"x" * 99 + b'"\n', "record that starts on line 3 is longer"),
        ("t.csv", b'text\nok\n"' + b"xxx\n" * 30 + b'"\n', "quote opened on line 3 never closed"),
        ("t.csv", b'text\nok\n"' + b"\n" * 20 + b'"\n', "quote opened on line 3 never closed"),
        ("t.jsonl", b'\n{"text":"' + b"x" * 200 + b'"}\n', "record that starts on line 2 is longer"),
    ],
)
def test_c28_a_record_beyond_the_maximum_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes, message: str
) -> None:
    monkeypatch.setattr(lines_module, "MAX_RECORD_CHARS", 100)
    monkeypatch.setattr(lines_module, "MAX_RECORD_LINES", 10)
    with pytest.raises(InputError, match=message):
        read(tmp_path, name, data)


def test_an_input_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"text\n" + bytes(range(48, 58)) * 99)[:-20])
    (tmp_path / "not.csv.gz").write_bytes(b"text\n")
    for name, reason in [
        ("absent.csv", "No such file"),
        ("folder.csv", "directory"),
        ("t.xlsx", "'.xlsx' says no format; expected .csv, .tsv"),
        ("cut.csv.gz", "cannot be read"),
        ("not.csv.gz", "cannot be read"),
    ]:
        with pytest.raises(InputError, match=reason), open_tickets(tmp_path / name) as reader:
            list(reader)
    with pytest.raises(InputError, match="input format 'xml', expected one of csv, jsonl, tsv"):
        open_tickets(tmp_path / "absent.csv", format="xml")


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_an_input_without_rows_ends_cleanly(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, f"t.{form}", b"" if form == "jsonl" else b"text\n") == []
