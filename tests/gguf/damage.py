"""GGUF files and Modelfiles that are wrong in one way each: in what is computed, in stored numbers, or in what is said beside them.

`test_damage.py` runs them as tests.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from handlers.gguf.format import TWIN
from handlers.validate.twins.messages import Answer
from tests.exports import twins
from tests.exports.twins import STORED, STRUCTURE
from tests.gguf import forms, kinds
from tests.validate.damage_files import Case, lose

LENGTH = 256
"""Positions of the models of `kinds`."""
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512}
"""Rows that K-quants' blocks of 256 fit."""
Tensors = dict[str, np.ndarray]
"""Rows as the file has them: bytes of blocks, or floats."""


@dataclass(frozen=True)
class Damage:
    """One way to be wrong."""

    name: str
    kind: str
    """Of `kinds.KINDS`."""
    variant: str
    words: str
    """What the reasons say."""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Key → new value, or what makes it of the present one."""
    change: Callable[[Tensors], Any] = lambda tensors: None
    """What is done to the tensors, in place."""

    def apply(self, source: Path, target: Path) -> Path:
        """A damaged copy."""
        shutil.copytree(source, target)
        (path,) = target.glob("*.gguf")
        edited(path, self.keys, self.change)
        assert path.read_bytes() != next(source.glob("*.gguf")).read_bytes(), f"{self.name} changed nothing"
        return target


def edited(path: Path, keys: Mapping[str, Any], change: Callable[[Tensors], Any] = lambda tensors: None) -> None:
    """Write a file anew with other keys (None: without the key) and tensors."""
    import gguf

    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(None, reader.fields["general.architecture"].contents())
    for name, one in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value, wanted = one.contents(), keys.get(name, ...)
        value = value if wanted is ... else wanted(value) if callable(wanted) else wanted
        if value is not None:
            writer.add_key_value(name, value, one.types[0], one.types[-1] if one.types[0] is gguf.GGUFValueType.ARRAY else None)
    assert keys.keys() <= reader.fields.keys(), keys
    data = {one.name: one.data.copy() for one in reader.tensors}
    change(data)
    for one in reader.tensors:
        writer.add_tensor(one.name, data[one.name], raw_dtype=one.tensor_type)
    writer.write_header_to_file(path.with_suffix(".new"))
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)


def model(kind: str, folder: Path) -> Path:
    """A model of a kind, wide enough for K-quants."""
    return folder if folder.is_dir() else kinds.make(kind, folder, **({"n_embd": 256} if kind == "GPT-2" else WIDE))


def artifact(kind: str, variant: str, folder: Path) -> Path:
    """The sound folder of a variant. Read only."""
    work = folder / f"{kind} {variant}"
    if not work.is_dir():
        forms.make(variant, model(kind, folder / kind), work, texts=2)
    return work / "staging"


def answered(kind: str, made: Path, folder: Path) -> Answer:
    """What the comparison of a folder with its twin finds; `folder` has the models."""
    return twins.answered(TWIN, "gguf", made, model(kind, folder / kind), twins.texts(LENGTH, 100), arithmetic="blocks")


def _swap(first: str, second: str) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[first], tensors[second] = tensors[second], tensors[first]

    return change


def _times(name: str, factor: float, rows: slice = slice(None)) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[name][rows] *= factor

    return change


def _rows(name: str, order: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], Any]:
    """Put a tensor's rows in another order."""

    def change(tensors: Tensors) -> None:
        tensors[name] = np.ascontiguousarray(order(tensors[name]))

    return change


def _half(name: str, row: int, at: int, factor: float) -> Callable[[Tensors], Any]:
    """Multiply a half in the bytes of a row."""

    def change(tensors: Tensors) -> None:
        place = tensors[name][row, at : at + 2].view(np.float16)
        place[:] = np.float16(float(place[0]) * factor)

    return change


def _byte(name: str, row: int, at: int, by: int) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[name][row, at] = (int(tensors[name][row, at]) + by) % 256

    return change


def _zero(name: str, rows: slice) -> Callable[[Tensors], Any]:
    def change(tensors: Tensors) -> None:
        tensors[name][rows] = 0

    return change


def _turned_back(rows: np.ndarray) -> np.ndarray:
    """Queries of 4 heads as transformers has them."""
    return rows.reshape(4, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _heads(rows: np.ndarray) -> np.ndarray:
    halves = np.split(rows, 2)
    return np.concatenate(halves[::-1])


Q4, Q8 = "gguf-q4_k_m", "gguf-q8_0"
BETWEEN = "blk.1.attn_output.weight"
CASES = (
    Damage("another rotary base", "Llama", Q4, STRUCTURE, {"llama.rope.freq_base": lambda value: value * 1.05}),
    Damage("another epsilon", "Llama", Q4, STRUCTURE, {"llama.attention.layer_norm_rms_epsilon": 1e-2}),
    Damage("a norm of one layer 2 % larger", "Llama", Q4, STRUCTURE, change=_times("blk.1.attn_norm.weight", 1.02)),
    Damage("one number of the last norm", "Llama", Q8, STRUCTURE, change=_zero("output_norm.weight", slice(3, 4))),
    Damage("queries of one layer not permuted", "Llama", Q8, STORED, change=_rows("blk.1.attn_q.weight", _turned_back)),
    Damage("heads of keys changed places", "Llama", Q8, STORED, change=_rows("blk.0.attn_k.weight", _heads)),
    Damage("two layers' products changed places", "Llama", Q4, STRUCTURE, change=_swap("blk.0.attn_output.weight", BETWEEN)),
    Damage("gate and up changed places", "Llama", Q8, STRUCTURE, change=_swap("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight")),
    Damage("rows of a product moved by one", "Llama", Q8, STORED, change=_rows("blk.1.ffn_up.weight", lambda rows: np.roll(rows, 1, 0))),
    Damage("Llama 3's divisors", "Llama 3", Q8, STRUCTURE, change=_times("rope_freqs.weight", 1.5, slice(4, None))),
    Damage("another factor of the positions", "Llama, linear", Q8, STRUCTURE, {"llama.rope.scaling.factor": 2.1}),
    Damage("another factor of YaRN", "Qwen2, YaRN", Q8, STRUCTURE, {"qwen2.rope.scaling.factor": 3.0}),
    Damage("a bias lost", "Qwen2", Q8, STRUCTURE, change=_zero("blk.1.attn_q.bias", slice(None))),
    Damage("a norm of queries", "Qwen3", Q4, STRUCTURE, change=_times("blk.0.attn_q_norm.weight", 1.1)),
    Damage("one expert instead of two", "Qwen3 MoE", Q8, STRUCTURE, {"qwen3moe.expert_used_count": 1}),
    Damage("two experts changed places", "Qwen3 MoE", Q8, STORED, change=_rows("blk.0.ffn_down_exps.weight", lambda one: one[::-1])),
    Damage("a cap of the logits", "Gemma 2", Q8, STRUCTURE, {"gemma2.final_logit_softcapping": 10.0}),
    Damage("a cap of the attention", "Gemma 2", Q8, STRUCTURE, {"gemma2.attn_logit_softcapping": 2.0}),
    Damage("another window", "Gemma 3", Q8, STRUCTURE, {"gemma3.attention.sliding_window": 32}),
    Damage("a norm without its 1", "Gemma", Q8, STRUCTURE, change=lambda tensors: tensors["blk.0.ffn_norm.weight"].__isub__(1)),
    Damage("half of the rotary dimensions of Phi", "Phi", Q8, STRUCTURE, {"phi2.rope.dimension_count": lambda value: value // 2}),
    Damage("positions moved by one", "GPT-2", Q8, STORED, change=_rows("position_embd.weight", lambda rows: np.roll(rows, 1, 0))),
    Damage("a bias of GPT-2", "GPT-2", Q4, STRUCTURE, change=_times("blk.0.ffn_up.bias", 2.0)),
    Damage("a block's scale 10 % larger", "Llama", Q4, STORED, change=_half("blk.0.ffn_up.weight", 5, 0, 1.1)),
    Damage("a block's minima twice as large", "Llama", Q4, STORED, change=_half("blk.1.ffn_gate.weight", 9, 2, 2.0)),
    Damage("one number in 4 bits", "Llama", Q4, STORED, change=_byte("blk.0.ffn_up.weight", 7, 40, 3 * 16)),
    Damage("one scale in 6 bits", "Llama", Q4, STORED, change=_byte("blk.0.attn_q.weight", 7, 4, 9)),
    Damage("one scale of Q6_K", "Llama", "gguf-q6_k", STORED, change=_byte("blk.0.ffn_up.weight", 2, 195, 20)),
    Damage("rows of the table zeroed", "Llama", Q4, STORED, change=_zero("token_embd.weight", slice(3, 6))),
    Damage("one number in 8 bits", "Llama", Q8, STORED, change=_byte("blk.1.ffn_down.weight", 4, 40, 3)),
    Damage("a block's scale in 8 bits", "Qwen3", Q8, STORED, change=_half("output.weight", 8, 34, 1.02)),
    Damage("a row of halves 1 % larger", "Llama", "gguf-f16", STORED, change=_times("blk.0.attn_v.weight", 1.01, slice(6, 7))),
    Damage("a tied head's row", "Qwen2", Q8, STORED, change=_zero("token_embd.weight", slice(100, 101))),
)  # fmt: skip


def stated(key: str, value: Any) -> Callable[[Path], None]:
    """Give the file another value of a key; see `edited`."""

    def damage(folder: Path) -> None:
        (path,) = folder.glob("*.gguf")
        edited(path, {key: value})

    return damage


def described(change: Callable[[str], str]) -> Callable[[Path], None]:
    """Change the text of the Modelfile."""

    def damage(folder: Path) -> None:
        before = (folder / "Modelfile").read_text()
        after = change(before)
        assert after != before
        (folder / "Modelfile").write_text(after)

    return damage


def all_normal(types: list[int]) -> list[int]:
    return [1 if one == 3 else one for one in types]


def _other_roles(text: str) -> str:
    return text.replace('"user"', '"none"').replace('"assistant"', '"user"').replace('"none"', '"assistant"')


def moved(values: list[Any]) -> list[Any]:
    return [*values[:20], values[21], values[20], *values[22:]]


SAID = tuple(Case(name, (Q8,), damage, words) for name, damage, words in (
    ("another end", stated("tokenizer.ggml.eos_token_id", 7), "special tokens|named_ends|the end of a text"),
    ("another padding", stated("tokenizer.ggml.padding_token_id", 9), "pad_token_id is"),
    ("another template", stated("tokenizer.chat_template", lambda text: text.replace("<|", "<!", 1)), "chat template writes"),
    ("no template", stated("tokenizer.chat_template", None), "no chat template"),
    ("a merge lost", stated("tokenizer.ggml.merges", lambda merges: merges[:-1]), "merges"),
    ("merges in another order", stated("tokenizer.ggml.merges", moved), "merges"),
    ("tokens changed places", stated("tokenizer.ggml.tokens", moved), "gives id"),
    ("special tokens that are texts", stated("tokenizer.ggml.token_type", all_normal), "of the kind"),
    ("one token special", stated("tokenizer.ggml.token_type", lambda kinds: [*kinds[:50], 3, *kinds[51:]]), "of the kind 'control'"),
    ("another way of taking texts apart", stated("tokenizer.ggml.pre", "default"), "its tokenizer gives other token ids"),
    ("a beginning that no text has", stated("tokenizer.ggml.add_bos_token", lambda value: not value), "its tokenizer"),
    ("an end behind each prompt", stated("tokenizer.ggml.add_eos_token", lambda value: not value), "its tokenizer"),
    ("another length", stated("qwen3.context_length", lambda length: length // 2), "context_length is"),
    ("a length that the model does not know", stated("qwen3.context_length", lambda length: length * 4), "context_length is"),
    ("a stop that is a text", described(lambda text: f'{text}PARAMETER stop "the"\n'), "stop is 'the'"),
    ("another stop", described(lambda text: re.sub(r"PARAMETER stop .*", 'PARAMETER stop "end"', text)), "stop"),
    ("a context that the model does not know", described(lambda text: re.sub(r"num_ctx \d+", "num_ctx 99999", text)), "num_ctx is"),
    ("a context of a few words", described(lambda text: re.sub(r"num_ctx \d+", "num_ctx 8", text)), "num_ctx is 8"),
    ("another temperature", described(lambda text: f"{text}PARAMETER temperature 0.2\n"), "temperature is"),
    ("a system message", described(lambda text: f"{text}SYSTEM You are a pirate.\n"), "SYSTEM puts a text"),
    ("another file", described(lambda text: re.sub(r"FROM .*", "FROM ./other.gguf", text)), "FROM names './other.gguf'"),
    ("another template of Ollama's", described(lambda text: text.replace("{{ .Content }}", "{{ .Content }} ", 1)), "TEMPLATE writes"),
    ("roles changed places", described(_other_roles), "TEMPLATE writes"),
    ("no Modelfile", lose("Modelfile"), "lacks its Modelfile"),
))  # fmt: skip


IMPORTANCES = (None, 0.0, 2.0, 5.0)
"""Orders of magnitude over which the importance of columns is spread; None for no importance."""


def matrices() -> dict[str, np.ndarray]:
    """Weights (24, 1024) fp32 of many kinds."""
    drawn, shape = np.random.default_rng(0), (24, 1024)
    normal = drawn.normal(0, 0.02, shape)
    few = np.where(np.arange(shape[1]) % 97 == 0, 30, 1)
    tiny = np.where(np.arange(shape[0]) % 7 == 0, 1e-3, 1)[:, None]
    found = {
        "normal": normal, "heavy tails": drawn.standard_t(2, shape) * 0.02, "heavier tails": drawn.standard_t(1.3, shape) * 0.01,
        "large columns": normal * few, "tiny rows": normal * tiny, "tiny": normal * 1e-3, "nearly nothing": normal * 1e-5,
        "huge": normal * 1e4, "positive": np.abs(normal) + 0.05, "equal": np.full(shape, 0.25),
        "sparse": normal * (drawn.random(shape) < 0.05), "of all sizes": np.exp(drawn.normal(-4, 2, shape)) * np.sign(normal),
        "blocks of all sizes": normal * (10.0 ** drawn.uniform(-4, 0, (24, 32))).repeat(32, 1), "on a grid": np.round(normal * 100) / 16,
    }  # fmt: skip
    return {name: matrix.astype(np.float32) for name, matrix in found.items()}


def quantized(matrix: np.ndarray, kind: str, orders: float | None) -> Any:
    """A matrix as llama.cpp's quantizer stores it, read as the comparison with the twin reads it."""
    import ctypes

    import gguf

    from handlers.gguf.llama import library
    from handlers.gguf.twin.reading import Tensor

    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    rows, columns = matrix.shape
    out, source = np.zeros((rows, columns // block * size), np.uint8), np.ascontiguousarray(matrix)
    weights = None if orders is None else (10.0 ** np.random.default_rng(1).uniform(-orders, 0, columns)).astype(np.float32)
    function = library.ggml().ggml_quantize_chunk
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    function(int(number), source.ctypes.data, out.ctypes.data, 0, rows, columns, None if weights is None else weights.ctypes.data)
    return Tensor("w", "product", out, number, columns)
