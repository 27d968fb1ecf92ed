"""`ckptd check` says when the texts that the configuration names can't be read, and what is expected."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from daemon.config.settings import Settings
from daemon.operating.diagnosis.texts import problems_of_texts


def problems(path: Path, key: str = "data") -> list[str]:
    return problems_of_texts(Settings(validate={key: str(path)}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.jsonl", None, "there is no such file or folder"),
        ("a.jsonl", b"not json\n", 'has no JSON row; expected "text"'),
        ("a.jsonl", b"", 'is empty; expected "text"'),
        ("a.json", b"text", "is not JSON"),
        ("a.parquet", b"text", "does not begin as a file of that kind does"),
        ("a.txt", b"\xff\xff\n", "is not UTF-8 text"), ("a.txt", b"\xff\xfea\0", "is UTF-16 text"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_a_problem_with_its_key(name: str, content: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for key in ("data", "prompts"):
        (problem,) = problems(path, key)
        assert problem.startswith(f"validate.{key}: {path}: ") and said in problem


def test_a_folder_without_texts_is_a_problem_and_one_good_file_is_enough(tmp_path: Path) -> None:
    assert "no file in it has a name that ends with .txt, .jsonl" in problems(tmp_path)[0]
    (tmp_path / "bad.jsonl").write_text("")
    assert len(problems(tmp_path)) == 1
    pyarrow.parquet.write_table(pa.table({"text": ["a"]}), tmp_path / "good.parquet")
    assert problems(tmp_path) == []
    assert problems_of_texts(Settings()) == []
