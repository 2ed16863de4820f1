"""Print the label, score and start of every ticket in a CSV that slm-run wrote."""

import csv
import sys
from pathlib import Path

TEXT_WIDTH = 68

with Path(sys.argv[1]).open(encoding="utf-8", newline="") as stream:
    print(f"{'id':<8}{'label':<11}{'score':>6}  text")
    for row in csv.DictReader(stream):
        text = " ".join(row["text"].split())
        shown = text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"
        print(f"{row['id']:<8}{row['label']:<11}{float(row['score']):>6.2f}  {shown}")
