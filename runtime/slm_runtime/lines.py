"""The physical lines of an input, and what a message must say about the record that is being read."""

import codecs
import io
import zlib
from collections.abc import Iterator
from gzip import GzipFile
from typing import BinaryIO

from slm_runtime.errors import InputError
from slm_runtime.live_input import PollingInput
from slm_runtime.ticket_text import LONE_SURROGATE, replace_lone_surrogates

MAX_RECORD_CHARS = 16 * 2**20
MAX_RECORD_LINES = 10_000


class RecordTooLongError(InputError):
    """A record is longer than any ticket: most likely a quote that is never closed."""


class PhysicalLines(Iterator[str]):
    """Lines with their ending, split at LF only, from line 1 on; a byte order mark is dropped.

    Undecodable bytes become U+FFFD and are described in `bad_byte`, so that they fail one record and not the
    file. The reader calls `start_record` between records and keeps `num_blank` and `num_replaced` up to date.

    Raises: RecordTooLongError when one record passes MAX_RECORD_CHARS characters or MAX_RECORD_LINES lines;
    InputError when the stream cannot be read or the encoding is unknown. `live` is the pipe under `stream`,
    if it is one.
    """

    def __init__(
        self, stream: BinaryIO | GzipFile, *, name: str, encoding: str, live: PollingInput | None = None
    ) -> None:
        self.name = name
        self.live = live
        self.number = 0
        self.num_blank = 0
        self.num_replaced = 0
        try:
            self._encoding = codecs.lookup(encoding).name
            # UTF-16 and UTF-32 carry a bad unit as a lone surrogate, the others as an escaped byte.
            wide = self._encoding.startswith(("utf-16", "utf-32"))
            self._errors = "surrogatepass" if wide else "surrogateescape"
            self._text = io.TextIOWrapper(stream, encoding=self._encoding, errors=self._errors, newline="\n")
        except LookupError as error:
            stream.close()
            raise InputError(f"{name}: {error}; give --encoding a name such as utf-8, cp1252 or utf-16") from error
        self.start_record()

    def start_record(self) -> None:
        """Forget the lines of the record before."""
        self.record: list[str] = []
        self.bad_byte: str | None = None
        self._record_chars = 0

    @property
    def record_number(self) -> int:
        """The line, from 1, on which the current record starts."""
        return self.number - len(self.record) + 1

    def __next__(self) -> str:
        line = self._read()
        if not line:
            raise StopIteration
        self.number += 1
        if bad := LONE_SURROGATE.search(line):
            self.bad_byte = self.bad_byte or self._describe(line, bad.start())
            line = replace_lone_surrogates(line)
        if self.number == 1:
            line = line.removeprefix("\ufeff")
        self.record.append(line)
        self._record_chars += len(line)
        if self._record_chars > MAX_RECORD_CHARS or len(self.record) > MAX_RECORD_LINES:
            raise RecordTooLongError(
                f"{self.name}: the record that starts on line {self.record_number} is longer than "
                f"{MAX_RECORD_CHARS:,} characters or {MAX_RECORD_LINES:,} lines; split it or cut it"
            )
        return line

    def close(self) -> None:
        """Close the stream."""
        self._text.close()

    def _read(self) -> str:
        try:
            return self._text.readline(MAX_RECORD_CHARS + 1)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise InputError(f"{self.name}: cannot be read beyond line {self.number}: {error}") from error

    def _describe(self, line: str, index: int) -> str:
        before = line[:index].encode(self._encoding, self._errors)
        offset = len(before) - len("".encode(self._encoding))  # some codecs start with a mark of their own
        value = ord(line[index]) - (0xDC00 if self._errors == "surrogateescape" else 0)
        return (
            f"line {self.number}: 0x{value:02X} at byte offset {offset} of the line is not valid "
            f"{self._encoding}; give the encoding of the file with --encoding"
        )
