#!/usr/bin/env bash
# From a fresh clone to labelled tickets: bash models/demo.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. models/venv.sh
ensure_venv export

hub_bundle=models/qwen2.5-0.5b-instruct
catalogue_name=qwen2.5-coder-0.5b-instruct
catalogue_bundle=models/$catalogue_name

if [ -f "$hub_bundle/manifest.json" ]; then
    bundle=$hub_bundle
elif [ -f "$catalogue_bundle/manifest.json" ]; then
    bundle=$catalogue_bundle
elif .venv/bin/slm-export --output "$hub_bundle"; then
    bundle=$hub_bundle
else
    echo "demo: the default model cannot be had from the hub; falling back to $catalogue_name from the catalogue." >&2
    .venv/bin/slm-export "$catalogue_name" --output "$catalogue_bundle"
    bundle=$catalogue_bundle
fi

output=models/example/labels.csv
.venv/bin/slm-run classify "$bundle" --input models/example/tickets.csv --task models/example/task.toml \
    --output "$output" --overwrite
.venv/bin/python models/example/show.py "$output"
echo "model: $bundle"
echo "labels: $output (details of the run: $output.run.json)"
