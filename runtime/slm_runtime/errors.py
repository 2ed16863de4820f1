"""Every error that a user can cause. Anything else that escapes is a bug of ours.

    SlmError
    ├── InputError           exit 2   an argument or an input file that cannot be used
    │   ├── TaskError                 the task: prompt, scoring rule, threshold
    │   │   └── LabelError            the label list
    │   ├── RecordError               one input row; the command line turns it into that row's `error`
    │   │   └── PromptTooLongError
    │   ├── SourceError               a model that slm-export cannot fetch or read
    │   ├── ResourceError             too little disk or memory, found before anything was written
    │   ├── OutputError               the output cannot be written
    │   └── RejectedRowsError         rows that cannot be classified, where all must be
    ├── InterruptedRunError  exit 130 stopped by the user; says what is kept
    ├── ParityError          exit 3   a result differs from the reference
    ├── ArtifactError        exit 4   the bundle
    │   ├── DigestError               a file is missing or its size or sha256 is not the manifest's
    │   ├── FormatError               not a bundle, or one of a format this version cannot read
    │   └── GraphMismatchError        the graph does not have the inputs and outputs the manifest states
    ├── ProviderError        exit 4   the execution provider is not available here
    └── ClusterError         exit 4   the Ray cluster cannot be reached, or failed

A message names the subject, what was found, what was expected, and the next step.
"""


class SlmError(Exception):
    """Base of every error that is reported as one line, without a traceback."""

    exit_code = 2


class InputError(SlmError):
    """An argument or an input file cannot be used."""


class TaskError(InputError):
    """The task cannot be used with this bundle."""


class LabelError(TaskError):
    """The label list cannot be used."""


class RecordError(InputError):
    """One input row cannot be classified."""


class PromptTooLongError(RecordError):
    """The prompt of one row is longer than the token limit."""


class SourceError(InputError):
    """The model to export cannot be fetched or read."""


class ResourceError(InputError):
    """Disk or memory is too small for the job."""


class OutputError(InputError):
    """The output cannot be written."""


class RejectedRowsError(InputError):
    """Rows cannot be classified in a run that was to have none such."""


class InterruptedRunError(SlmError):
    """The user stopped the run."""

    exit_code = 130


class ParityError(SlmError):
    """A result differs from the reference by more than the tolerance."""

    exit_code = 3


class ArtifactError(SlmError):
    """The bundle cannot be used."""

    exit_code = 4


class DigestError(ArtifactError):
    """A file of the bundle is missing or is not the file that was exported."""


class FormatError(ArtifactError):
    """The folder is not a bundle, or not one this version can read."""


class GraphMismatchError(ArtifactError):
    """A graph does not have the inputs or outputs that the manifest states."""


class PrecisionError(ArtifactError):
    """The bundle lacks the decoder in the precision that was asked for."""


class ProviderError(SlmError):
    """The requested execution provider cannot be used on this machine."""

    exit_code = 4


class ClusterError(SlmError):
    """The Ray cluster cannot be reached, or it failed."""

    exit_code = 4
