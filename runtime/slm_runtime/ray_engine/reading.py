"""The first stage: an input file becomes blocks of tickets, through the readers of the local run."""

from collections.abc import Iterator
from dataclasses import dataclass

from slm_runtime.errors import InputError
from slm_runtime.ray_engine.blocks import BlockSize, FileEnd, TicketBlock
from slm_runtime.ray_engine.storage import Storage
from slm_runtime.readers import TicketReader, open_tickets


@dataclass(frozen=True)
class BlockReader:
    """How every input of a job is read; `all_columns` where the parts repeat them."""

    storage: Storage
    size: BlockSize
    text_column: str
    id_column: str | None
    input_format: str | None
    encoding: str | None
    delimiter: str | None
    all_columns: bool

    def blocks(self, file: int, name: str) -> Iterator[TicketBlock]:
        """The blocks of one input, in order; the last one has an `end`, which says why a file cannot be read on."""
        index, end = 0, FileEnd()
        columns: tuple[str, ...] = ()
        try:
            with self._open(name) as reader:
                columns = reader.columns
                for tickets in self.size.cut(reader):
                    yield TicketBlock(file, index, columns, tickets)
                    index += 1
                end = FileEnd(reader.num_blank, reader.num_replaced)
        except InputError as error:
            end = FileEnd(error=str(error))
        except Exception as error:  # noqa: BLE001 - one file must not end a job of thousands
            end = FileEnd(error=f"{name}: {type(error).__name__}: {error}")
        yield TicketBlock(file, index, columns, (), end)

    def _open(self, name: str) -> TicketReader:
        return open_tickets(
            self.storage.ticket_file(name),
            text_column=self.text_column,
            id_column=self.id_column,
            encoding=self.encoding,
            delimiter=self.delimiter,
            format=self.input_format,
            all_columns=self.all_columns,
        )
