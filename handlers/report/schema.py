"""Writes docs/report.schema.json, the JSON Schema of `report.json`: `python -m handlers.report.schema`.

Run by developers whenever `handlers.report.model` changes; the tests hold the file to the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from daemon.contract.values import docstrings
from handlers.report.model import Report

TARGET = Path(__file__).parents[2] / "docs" / "report.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_text() -> str:
    """The schema of a written report, in which every field is present, as formatted JSON."""
    schema = {"$schema": DIALECT, **Report.model_json_schema(mode="serialization", schema_generator=_Described)}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


class _Described(GenerateJsonSchema):
    """Takes the docstrings of attributes for descriptions."""

    def model_schema(self, schema: Any) -> Any:
        """The schema of a model, its fields described."""
        return self._described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> Any:
        """The schema of a record, its fields described."""
        return self._described(super().dataclass_schema(schema), schema["cls"])

    @staticmethod
    def _described(written: Any, kind: Any) -> Any:
        for name, text in docstrings(kind).items():
            written["properties"][name].setdefault("description", text)
        return written


if __name__ == "__main__":
    TARGET.write_text(schema_text(), encoding="utf-8")
