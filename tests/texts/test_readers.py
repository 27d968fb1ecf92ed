"""Files of texts: every kind is read by its content, within bounds, and whatever lies in one ends as rows or as one sentence."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.config.settings import Settings
from daemon.contract.disk.data_files import DataPlace, stamp
from daemon.contract.faults.errors import CkptdError
from daemon.operating.diagnosis.texts import problems_of_texts
from handlers.texts import readers, sources
from handlers.texts.sources import Source

CHAT = [{"role": "user", "content": "Wie spät ist es?"}, {"role": "assistant", "content": "Kurz nach acht."}]
ROWS: dict[str, tuple[Any, tuple[str, str | None, str | None]]] = {
    "text": ({"text": "one"}, ("one", None, None)),
    "labelled text": ({"sentence": "good", "label": 1}, ("good", None, None)),
    "prompt and completion": ({"prompt": "2 + 2 =", "completion": " 4"}, ("2 + 2 = 4", "2 + 2 =", " 4")),
    "preference": ({"prompt": "a", "chosen": "b", "rejected": "c"}, ("ab", "a", "b")),
    "instruction": ({"instruction": "Add.", "input": "1 1", "output": "2"}, ("Add.\n\n1 12", "Add.\n\n1 1", "2")),
    "translation": ({"translation": {"en": "cat", "de": "Katze"}}, ("catKatze", "cat", "Katze")),
    "plain string": ("only this", ("only this", None, None)),
}


def store(folder: Path, rows: list[Any], kind: str) -> Path:
    """Rows in a file of one kind, by the real writers."""
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    elif kind == "json":
        path.write_text(json.dumps(rows), "utf-8")
    elif kind in ("csv", "tsv"):
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="," if kind == "csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "txt":
        path.write_text("".join(row["text"] + "\n" for row in rows))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=16)
    elif kind == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=16)
    else:
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)
    return path


def read(path: Path, setting: str = "validate.data") -> tuple[list[Any], Source]:
    source = Source(setting, str(path))
    return list(source.texts()), source


@pytest.mark.parametrize("name", ROWS)
def test_each_form_of_a_row_is_understood(name: str, tmp_path: Path) -> None:  # R2.6
    row, (text, prompt, completion) = ROWS[name]
    (found,), _ = read(store(tmp_path, [row], "jsonl"))
    assert (found.text, found.prompt, found.completion) == (text, prompt, completion)
    assert [found.text[start:end] for start, end in found.spans] == ([completion] if completion else [])


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "arrow", "feather"])
def test_conversations_and_labels_come_out_of_every_kind_of_file_alike(kind: str, tmp_path: Path) -> None:  # R2.6
    rows = [{"messages": CHAT, "number": number, "vector": [0.5, number]} for number in range(40)]
    found, source = read(store(tmp_path, rows, kind))
    assert len(found) == 40 and source.rows == 40 and not source.warnings
    assert [(turn.role, turn.content) for turn in found[0].turns] == [(one["role"], one["content"]) for one in CHAT]


def test_a_data_set_as_the_library_saves_it_is_read_from_its_folder(tmp_path: Path) -> None:  # R2.6
    """`save_to_disk` of a DatasetDict: a folder a split with IPC streams, and descriptions that hold no rows."""
    for split, count in (("train", 20), ("test", 5)):
        folder = tmp_path / split
        folder.mkdir()
        store(folder, [{"text": f"{split} {number}", "label": number % 2} for number in range(count)], "arrow").rename(
            folder / "data-00000-of-00001.arrow"
        )
        (folder / "dataset_info.json").write_text('{"features": {}}')
        (folder / "state.json").write_text("{}")
        (folder / "cache-0123.arrow").write_bytes(b"\xff\xff\xff\xff not ours")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found, source = read(tmp_path)
    assert len(found) == 25 and not source.warnings
    assert {one.text.split()[0] for one in found} == {"train", "test"}


def test_names_of_classes_stand_for_their_numbers(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}, "text": {"_type": "Value"}}}}
    table = pa.table({"text": ["a", "b"], "label": [1, 0]}).replace_schema_metadata({"huggingface": json.dumps(features)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    found, _ = read(tmp_path)
    assert [one.label for one in found] == ["good", "bad"]


def test_a_bad_row_is_named_with_its_file_and_line_and_the_others_count(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"txt": "two"}\n{"text": \n\n{"text": "three"}\n')
    found, source = read(path)
    assert [one.text for one in found] == ["one", "three"]
    (warning,) = source.warnings
    assert warning.startswith(f"2 rows were left out of {path}; the first is line 2: it has 'txt'; expected \"text\", ")


@pytest.mark.parametrize(
    ("name", "content", "code", "said"),
    [
        ("a.jsonl", b"nothing\n", "data-empty", "it is not JSON"),
        ("a.json", b'{"a": 1}', "data-unreadable", "no JSON list"),
        ("a.json", b"[" * 100_000, "data-unreadable", "not JSON"),
        ("a.parquet", b"PAR1 and more", "data-unreadable", "can't be read as Parquet"),
        ("a.arrow", b"whatever", "data-unreadable", "can't be read as Arrow"),
        ("a.txt", b"", "data-empty", "holds no text"),
    ],
)
def test_a_file_without_texts_is_one_clear_error(name: str, content: bytes, code: str, said: str, tmp_path: Path) -> None:  # R5.4
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CkptdError) as caught:
        read(tmp_path / name)
    assert caught.value.fault.code == code and said in caught.value.fault.cause
    assert "validate.data" in caught.value.fault.remedy and caught.value.fault.path == str(tmp_path / name)


def test_a_file_that_is_none_is_left_out_of_a_folder_and_named(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    found, source = read(tmp_path)
    assert [one.text for one in found] == ["one"]
    assert "1 of 2 files" in source.warnings[-1] and "bad.parquet" in source.warnings[-1]


def test_of_a_large_file_pieces_from_all_over_it_are_read_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PIECE", 4096)
    monkeypatch.setattr(sources, "LEAST_SHARE", 4096)
    monkeypatch.setattr(sources, "BUDGET", 8 * 4096)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {number:06}"}) + "\n" for number in range(20_000)))
    found, source = read(path)
    numbers = [int(one.text.split()[1]) for one in found]
    assert numbers == sorted(set(numbers)) and 500 < len(numbers) < 1600, "whole rows, each once"
    assert numbers[0] == 0 and numbers[-1] > 19_000, "from its beginning to its end"
    assert not source.warnings and "at most" in source.read


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "LONGEST_LINE", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x" * 5000}) + "\n" + json.dumps({"text": "short"}) + "\n")
    found, source = read(path)
    assert [one.text for one in found] == ["short"] and "too long" in source.warnings[0]


def test_of_a_large_parquet_file_row_groups_from_all_over_it_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f"{number:06} " + os.urandom(400).hex()} for number in range(2000)]
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    monkeypatch.setattr(sources, "BUDGET", 200_000)
    monkeypatch.setattr(sources, "LEAST_SHARE", 200_000)
    found, _ = read(path)
    numbers = [int(one.text.split()[0]) for one in found]
    assert 100 < len(numbers) < 500 and numbers[0] == 0 and numbers[-1] > 1500


# --- what a run names is not trusted (rule 16)


def test_below_a_run_no_link_is_followed_and_no_way_out_taken(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    secret = tmp_path / "secret.txt"
    secret.write_text("secret\n")
    (run / "link.txt").symlink_to(secret)
    (run / "folder").symlink_to(tmp_path)
    (run / "own.txt").write_text("own\n")
    os.mkfifo(run / "pipe.txt")
    for inside, said in (("link.txt", "link"), ("folder/secret.txt", "link"), ("../secret.txt", "leads out"), ("pipe.txt", "regular")):
        with pytest.raises(CkptdError) as caught:
            list(Source("validate.data", f"{run}/./{inside}").texts())
        assert said in caught.value.fault.cause and "secret\n" not in caught.value.fault.sentence()
    assert [one.text for one in Source("validate.data", f"{run}/./own.txt").texts()] == ["own"]
    names = [file.parts for file in DataPlace.of(f"{run}/./").files()]
    assert names == [("own.txt",)]


def test_what_the_configuration_names_may_be_linked_as_a_hubs_cache_is(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"text": "one"}\n')
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "train.jsonl").symlink_to(tmp_path / "blob")
    assert [one.text for one in read(snapshot)[0]] == ["one"]


def test_the_stamp_changes_with_the_content_and_with_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\n")
    before = stamp(str(path))
    os.utime(path, (1, 1))
    assert stamp(str(path)) == before and stamp("") == []
    state = path.stat()
    path.write_text("two\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert stamp(str(path)) != before, "same size and time"
    assert stamp(str(tmp_path / "none")) == [["", "FileNotFoundError"]]
    assert stamp("a\0b") == [["", "ValueError"]]


# --- whatever lies there ends as rows or as an error of ours

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["text", "prompt", "completion", "messages", "conversations", "role", "from", "content", "value", "instruction", "output", "label",
         "translation", "question", "answer", "chosen", "type"]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def texts_or_fault(path: Path) -> None:
    try:
        for one in Source("validate.data", str(path)).texts():
            assert one.text or one.turns
            assert all(0 <= start <= end <= len(one.text) for start, end in one.spans)
            one.text.encode()
    except CkptdError as error:
        assert error.fault.remedy and "\n" not in error.fault.cause


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(JSON, max_size=6))
def test_no_json_ends_in_a_traceback(tmp_path: Path, rows: list[Any]) -> None:
    texts_or_fault(store(tmp_path, rows, "jsonl"))
    texts_or_fault(store(tmp_path, rows, "json"))


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from(["txt", "jsonl", "json", "arrow", "parquet", "csv", "tsv"]),
    st.sampled_from([b"", b"PAR1", b"ARROW1"]),
)
def test_no_bytes_end_in_a_traceback(tmp_path: Path, content: bytes, kind: str, beginning: bytes) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(beginning + content)
    texts_or_fault(path)


@pytest.mark.parametrize("kind", ["jsonl", "json", "arrow", "feather", "parquet", "csv", "tsv", "txt"])
def test_of_many_small_rows_a_bounded_number_is_read(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ROWS", 500)
    monkeypatch.setattr(readers, "LEAST_PIECE", 512)
    path = store(tmp_path, [{"text": f"text {number}", "label": number % 2} for number in range(5000)], kind)
    texts, source = read(path)
    assert 350 <= len(texts) <= 560 and source.read.startswith(f"{len(texts)} texts of more")
    last = max(int(one.text.split()[1].rstrip(",").split(",")[0]) for one in texts)
    assert (last > 4500) == (kind in ("jsonl", "json", "parquet")), "they are from all over the file"
    monkeypatch.setattr(sources, "ROWS", 5001)
    texts, source = read(path)
    assert len(texts) == 5000 and not source.read


def test_separated_values_are_rows_by_the_names_in_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffid;text;label\r\n1;"one; ""two""\nthree";pos\r\n2;four\r\n3;a;b;c\r\n'.encode())
    texts, source = read(path)
    assert [(one.text, one.label) for one in texts] == [('one; "two"\nthree', "pos"), ("four", None)]
    assert source.warnings == [
        f"1 row was left out of {path}; the first is the row after line 4: it has more fields than the first line has names."
    ]


@pytest.mark.parametrize(("content", "why"), [
    (gzip.compress(b'{"text": "a"}', mtime=0), "it is packed by gzip; write"), ("one\ntwo".encode("utf-16"), "it is UTF-16 text; write"),
    (b"PK\x03\x04" + bytes(30), "it is packed by zip; write"),
], ids=["gzip", "utf-16", "zip"])  # fmt: skip
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.xlsx", "a.json"])
@pytest.mark.parametrize("setting", ["validate.data", "validate.prompts"])
def test_a_file_of_another_kind_is_named_as_such(tmp_path: Path, name: str, content: bytes, why: str, setting: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CkptdError, match=why):
        read(path, setting)
    key = setting.partition(".")[2]
    (problem,) = problems_of_texts(Settings(validate={key: str(path)}))
    assert why in problem


def test_links_that_lead_round_are_said_to(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    path.symlink_to(path)
    with pytest.raises(CkptdError, match="its links lead round in a circle"):
        read(path)


def test_a_text_with_nul_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\nt\0wo\n")
    texts, source = read(path)
    assert [one.text for one in texts] == ["one"] and "line 2: it holds the character NUL" in source.warnings[0]


@pytest.mark.parametrize("rows", [4, 4000])
def test_a_table_that_is_packed_as_no_text_is_is_not_unpacked(tmp_path: Path, rows: int) -> None:
    """A page is unpacked as a whole, and a dictionary's value once for each row: a kilobyte could take all memory."""
    path = tmp_path / "bomb.parquet"
    if rows == 4:
        texts: Any = pa.array(["a" * (64 << 20), *"bcd"])
    else:
        texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["a" * (1 << 20)])
    pyarrow.parquet.write_table(pa.table({"text": texts}), path, compression="zstd", use_dictionary=rows > 4)
    assert path.stat().st_size < 20_000
    code = (
        "import resource, sys; from handlers.texts.sources import Source; import pyarrow.parquet\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: print(sum(1 for _ in Source('validate.data', sys.argv[1]).texts()))\n"
        "except Exception as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    said, more = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout.splitlines()
    assert int(more) < 400 << 10, f"{said}; {more} KiB"
    assert ("packed as no text is" in said) == (rows == 4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(["arrow", "parquet", "feather"]), st.integers(0, 10_000), st.binary(min_size=1, max_size=6), st.booleans())
def test_no_damaged_table_ends_in_a_traceback(tmp_path: Path, kind: str, place: int, patch: bytes, cut: bool) -> None:
    path = store(tmp_path, [{"text": f"t{number}", "messages": CHAT} for number in range(8)], kind)
    data = bytearray(path.read_bytes())
    place %= len(data)
    path.write_bytes(bytes(data[:place]) if cut else bytes(data[:place] + patch + data[place + len(patch) :]))
    texts_or_fault(path)


def test_lines_end_where_they_always_ended() -> None:
    """A form feed and a paragraph separator end a line too, as `str.splitlines` has it."""
    data = "one\x0ctwo\u2029three\r\nfour".encode()
    found = [row.value for row in readers.lines(io.BytesIO(data), len(data), readers.Share(1 << 20, 9)) if isinstance(row, readers.Row)]
    assert found == ["one", "two", "three", "four"]
