#!/usr/bin/env bash
# Everything that CI runs, from a fresh clone: bash tests/run.sh [pytest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. models/venv.sh
ensure_venv export,dev,parquet,report,serve,tune,ray
export PATH="$PWD/.venv/bin:$PATH"
# onnxruntime and torch size their own pools; the tokenizers library must not add a third one in forked tests.
export TOKENIZERS_PARALLELISM=false

ruff format --check --quiet .
ruff check --quiet .
mypy
python tests/readme_help.py --check
python -m pytest "$@"
