"""Default values that the command line shows; no imports, so that `--help` is quick."""

DEFAULT_BATCH_TOKENS = 768
DEFAULT_SERVE_BATCH_TOKENS = 2048
DEFAULT_TICKET_TOKENS = 2048
DEFAULT_WINDOW = 4096
