"""Writes docs/report.schema.json, the JSON Schema of `report.json`: `python -m handlers.report.schema`.

Run by developers whenever `handlers.report.model` changes; the tests hold the file to the model.
"""

from __future__ import annotations

import json
from pathlib import Path

from handlers.report.model import Report

TARGET = Path(__file__).parents[2] / "docs" / "report.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """The schema of a written report, in which every field is present, as formatted JSON."""
    schema = {"$schema": DIALECT, **Report.model_json_schema(mode="serialization")}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(schema_text(), encoding="utf-8")
