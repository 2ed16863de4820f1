"""A run that writes a file from a file: what may be replaced, what is continued, what is complete already."""

from dataclasses import dataclass
from pathlib import Path

from slm_runtime.errors import InputError, OutputError
from slm_runtime.journal import Journal, is_started, journal_path
from slm_runtime.run_identity import Identity, check_identity
from slm_runtime.run_record import read_record
from slm_runtime.writers import check_output, is_regular


@dataclass(frozen=True)
class Destination:
    """The output of a run and the flags that say what may happen to what is there.

    Raises:
        OutputError: the output exists, or an interrupted run of it, and no flag says what to do.
        InputError: the flags contradict each other, or a run of this kind cannot be resumed.

    `input` is None where it is no regular file.
    """

    output: Path
    input: Path | None
    resume: bool
    overwrite: bool

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise InputError("--resume continues a run, --overwrite starts over; give one of them")
        if self.resume and not self.keeps_journal:
            raise InputError(
                f"--resume needs a regular file for -i and for -o, found -o {self.output}; "
                "standard input and standard output cannot be continued"
            )
        journal = journal_path(self.output)
        if self.keeps_journal and not self.resume and not self.overwrite and journal.exists():
            raise OutputError(
                f"{journal}: an interrupted run is there; continue it with --resume, or start over with --overwrite"
            )
        if self.input is not None and self.output.exists() and self.output.samefile(self.input):
            raise OutputError(f"{self.output}: is the input; give the output another name")
        check_output(self.output, overwrite=self.overwrite or self.resume)

    @property
    def keeps_journal(self) -> bool:
        return self.input is not None and is_regular(self.output)

    def is_complete(self, identity: Identity) -> bool:
        """True when --resume has nothing to do because this very run was finished before.

        Raises:
            InputError: there is an output, but it is another run's.
        """
        if not self.resume or journal_path(self.output).exists() or not self.output.exists():
            return False
        before = read_record(self.output).get("identity")
        if not before:
            raise InputError(
                f"{self.output}: exists, and no record beside it says that this run wrote it; "
                "give another name, or --overwrite to replace it"
            )
        check_identity(str(self.output), before, identity)
        return True

    def open_journal(self, identity: Identity) -> Journal:
        """The journal to go on with, or a new one.

        Raises:
            InputError: the journal is that of another run, or damaged from its first line on.
            OutputError: it cannot be written, or the output has appeared since the run was interrupted.
        """
        path = journal_path(self.output)
        if not (self.resume and is_started(path)):
            return Journal.create(path, {"identity": identity, "overwrite": self.overwrite})
        journal = Journal.reopen(path)
        check_identity(str(self.output), journal.header.get("identity") or {}, identity)
        ours = journal.header.get("overwrite") or read_record(self.output).get("identity") == identity
        if self.output.exists() and not ours:
            raise OutputError(f"{self.output}: has appeared since the run was interrupted; move it away, then --resume")
        return journal
