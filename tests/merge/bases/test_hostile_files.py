"""Weight files and indexes that are damaged or made to do harm: one clear error, and no more memory than the file deserves."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from daemon.contract.faults.errors import Permanent
from daemon.contract.models.safetensors import MAX_HEADER, read_header
from handlers.models.files import read_json
from handlers.models.folder import ModelFolder

FUZZ = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file with a header that may be anything, of a length that may be wrong."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def refusal(path: Path) -> str:
    """The sentence with which a file is refused."""
    with pytest.raises(Permanent) as caught:
        read_header(path)
    assert caught.value.fault.code == "truncated-weights"
    sentence = str(caught.value)
    assert sentence.startswith("Could not read the safetensors header (")
    assert "\n" not in sentence
    assert len(sentence) < 600
    return sentence


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


CASES: dict[str, tuple[Any, bytes, str]] = {
    "no object": ([1, 2], b"", "not a JSON object"),
    "not JSON": (b'{"a": ', b"", "not JSON"),
    "not UTF-8": (b'{"\xff\xfe": 1}', b"", "not UTF-8"),
    "nested without end": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", "nested too deeply"),
    "a name twice": (b'{"a":%s,"a":%s}' % ((b'{"dtype":"U8","shape":[1],"data_offsets":[0,1]}',) * 2), b"x", "names a twice"),
    "entry no object": ({"a": 5}, b"", "entry of a is not an object"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234", "the dtype None"),
    "unknown dtype": ({"a": tensor("FLOAT32")}, b"12345678", "FLOAT32, which is unknown"),
    "dtype no text": ({"a": tensor({"x": 1})}, b"12345678", "which is unknown"),
    "shape no list": ({"a": tensor(shape=8)}, b"12345678", "the shape 8"),
    "negative shape": ({"a": tensor(shape=(-1, -2))}, b"12345678", "the shape"),
    "fractional shape": ({"a": tensor(shape=(2.0,))}, b"12345678", "the shape"),
    "boolean shape": ({"a": tensor("U8", (True,), (0, 1))}, b"1", "the shape"),
    "NaN shape": (b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}}', b"12345678", "the shape"),
    "endless shape": ({"a": tensor(shape=[1] * 17 + [2])}, b"12345678", "the shape"),
    "one offset": ({"a": tensor(offsets=(0,))}, b"12345678", "the offsets"),
    "negative offsets": ({"a": tensor(offsets=(-8, 0))}, b"12345678", "the offsets"),
    "turned offsets": ({"a": tensor(offsets=(8, 0))}, b"12345678", "the offsets"),
    "huge offsets": ({"a": tensor(offsets=(1 << 62, (1 << 62) + 8))}, b"12345678", "leave a gap"),
    "offsets beyond 64 bits": ({"a": tensor(offsets=(1 << 70, (1 << 70) + 8))}, b"12345678", "the offsets"),
    "number of many digits": (b'{"a":{"dtype":"F32","shape":[' + b"9" * 9000 + b'],"data_offsets":[0,8]}}', b"", ""),
    "size and shape differ": ({"a": tensor(shape=(3,))}, b"12345678", "does not match its shape"),
    "overlap": ({"a": tensor(), "b": tensor(offsets=(4, 12))}, b"0" * 12, "overlap at byte"),
    "gap": ({"a": tensor(), "b": tensor(offsets=(12, 20))}, b"0" * 20, "leave a gap at byte"),
    "gap at the beginning": ({"a": tensor(offsets=(8, 16))}, b"0" * 16, "leave a gap at byte"),
    "file too short": ({"a": tensor()}, b"1234", "its header describes"),
    "file too long": ({"a": tensor()}, b"123456789", "its header describes"),
    "name with an escape": ({"\x1b[31m" + "n" * 5000: 5}, b"", r"\x1b[31mnnn"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_unsound_header_is_refused_with_what_is_wrong_with_it(tmp_path: Path, case: str) -> None:
    header, data, cause = CASES[case]
    path = write(tmp_path / "model.safetensors", header, data)
    assert cause in refusal(path)


@pytest.mark.parametrize("size", [0, 7, 8])
def test_a_file_shorter_than_any_header_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0\0"[:size])
    refusal(tmp_path / "m.safetensors")


@pytest.mark.parametrize("length", [0, 3, MAX_HEADER + 1, (1 << 64) - 1])
def test_a_header_length_that_is_wrong_is_refused_without_reading_so_much(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "m.safetensors", {"a": tensor()}, b"12345678", length)
    with open(path, "r+b") as stream:
        stream.truncate(MAX_HEADER + (1 << 20))  # sparse
    tracemalloc.start()
    refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("unit", [b"0,", b"[[[]]],"])
def test_a_header_made_to_fill_the_memory_is_refused_before_it_is_parsed(tmp_path: Path, unit: bytes) -> None:
    text = b'{"a":[' + unit * ((MAX_HEADER - 100) // len(unit)) + b"0]}"
    path = write(tmp_path / "m.safetensors", text)
    del text
    tracemalloc.start()
    assert "more than the" in refusal(path)
    assert tracemalloc.get_traced_memory()[1] < 2 * MAX_HEADER
    tracemalloc.stop()


@pytest.mark.slow
def test_a_header_of_a_hundred_thousand_tensors_is_read(tmp_path: Path) -> None:
    header = {f"model.layers.{n // 1000}.mlp.experts.{n % 1000}.down_proj.weight": tensor("U8", (1, 1), (n, n + 1)) for n in range(100_000)}
    assert len(read_header(write(tmp_path / "m.safetensors", {"__metadata__": {"format": "pt"}, **header}, bytes(100_000)))) == 100_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F8_E4M3", "F4", "BOOL"]) | json_values,
        "shape": st.lists(st.integers(-1, 4), max_size=4) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    },
)


@given(st.dictionaries(st.text(max_size=5), entries | json_values, max_size=4), st.binary(max_size=48))
@FUZZ
def test_whatever_a_header_holds_it_is_read_or_refused(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    path = write(tmp_path / "m.safetensors", header, data)
    try:
        found = read_header(path)
    except Permanent:
        return
    # What is accepted covers the file, byte for byte.
    assert sum(info.size for info in found.values()) == len(data)


@given(st.binary(max_size=200))
@example(struct.pack("<Q", 2) + b"{}")
@FUZZ
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    try:
        read_header(tmp_path / "m.safetensors")
    except Permanent as error:
        assert "Could not read the safetensors header" in str(error)


@given(st.data())
@FUZZ
def test_a_damaged_file_that_is_accepted_is_one_that_safetensors_reads_too(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.arange(6.0), "b": torch.ones(2, 3).bfloat16(), "c": torch.tensor(1)}, path, metadata={"format": "pt"})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    try:
        found = read_header(path)
    except Permanent:
        return
    try:
        with safe_open(path, "pt") as handle:
            theirs = {name: tuple(handle.get_slice(name).get_shape()) for name in handle.keys()}  # noqa: SIM118 - no mapping
    except SafetensorError as error:
        # Its JSON is stricter about what does not matter: unknown keys, metadata that is no text.
        assert "JSON" in str(error) or "deserializ" in str(error).lower(), error
        return
    assert theirs == {name: info.shape for name, info in found.items()}


def test_links_in_a_circle_pipes_and_folders_are_refused(tmp_path: Path) -> None:
    loop, pipe, folder = (tmp_path / name for name in ("loop.safetensors", "pipe.safetensors", "folder.safetensors"))
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    folder.mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for path, cause in ((loop, "Too many levels of symbolic links"), (pipe, "not a regular file"), (folder, "not a regular file")):
        with pytest.raises(Permanent, match=cause):
            read_header(path)
        with pytest.raises(Permanent, match=cause):
            read_json(path, "read it")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_in_a_circle_under_a_models_weight_name_means_no_weights(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "model.safetensors")
    with pytest.raises(Permanent, match=r"there is no model\.safetensors"):
        ModelFolder(tmp_path).files  # noqa: B018


@pytest.mark.parametrize(
    "name", ["../../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".hidden.safetensors", "config.json", 5, ""]
)
def test_an_index_that_names_more_than_weight_files_beside_it_is_refused(tmp_path: Path, name: Any) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(Permanent, match="not a plain name of a weight file") as caught:
        ModelFolder(tmp_path).files  # noqa: B018
    assert caught.value.fault.code == "bad-index"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"weight_map": [', '{"weight_map": 5}', "[]", "\udcff"])
def test_an_index_that_is_no_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Permanent):
        ModelFolder(tmp_path).files  # noqa: B018


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("model-1.safetensors", "model-2.safetensors"):
        save_file({"a": torch.ones(1), name: torch.ones(1)}, tmp_path / name)
    mapping = {"a": "model-2.safetensors", "model-1.safetensors": "model-1.safetensors", "model-2.safetensors": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    with pytest.raises(Permanent, match=r"model-1.safetensors and model-2.safetensors both hold a"):
        ModelFolder(tmp_path).headers  # noqa: B018
