"""The tokenizer in a GGUF file: written from tokenizer.json, and proven by texts that llama.cpp reads from a file without weights.

llama.cpp has its own reading of texts, chosen by a name ("tokenizer.ggml.pre"): with a wrong name most texts are read right and some are
not. So each name that could be meant is tried, until one reads all texts and all added tokens as tokenizer.json does.

Of SentencePiece's kind it knows one reading that writes spaces by itself: before a text, and behind each token that stands for itself. The
tokenizers that transformers 5 saves write one before a text alone, and none where there is one. Where these spaces are all that differs,
the file is made and says so; what they change in answers to chats is measured (`handlers.gguf.llama.chats`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
from tokenizers import Tokenizer

from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.folder.hard_texts import TEXTS
from handlers.gguf.llama import library
from handlers.texts import chat
from handlers.texts.built_in import BUILT_IN
from handlers.texts.rows import RowRefused

BYTE_LEVEL = (
    "qwen2", "llama-bpe", "gpt-2", "smollm", "tekken", "deepseek-llm", "deepseek-v3", "gpt-4o", "starcoder", "phi-2", "stablelm2", "olmo",
    "falcon", "mpt", "dbrx", "command-r", "refact", "viking", "jais", "codeshell", "qwen35", "glm4", "default",
)  # fmt: skip
"""llama.cpp's ways of taking a text apart for byte-level BPE, the most usual first."""
USUAL = {"gpt2": "gpt-2", "llama": "llama-bpe", "mistral": "tekken", "phi3": "gpt-4o", "phi": "phi-2"}
"""Model type → what is tried first; else "qwen2"."""
CHATS = (["How are you?"], ["Hi, you!", " Hello.", "How are you?"], *([text] for text in BUILT_IN[:2]))
"""Turns of chats, the user's first."""

logging.getLogger("gguf").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Vocabulary:
    """What is written. `pre`: llama.cpp's name of the way of taking texts apart; `first`, `last`: tokens around each text, by id."""

    model: str
    pre: str
    tokens: list[str]
    types: list[gguf.TokenType]
    scores: list[float] | None
    first: int | None
    last: int | None
    ends: tuple[int, ...] = ()
    """Tokens that end what the model writes."""
    space: bool = False
    """Whether a text is read as if a space stood before it."""
    more_spaces: bool = False
    """Whether it is also where one stands already, and behind each token that stands for itself, other than tokenizer.json has it."""
    chats: tuple[tuple[list[int], list[int]], ...] = ()
    """Chats of which these spaces change the reading: token ids as tokenizer.json has them, and as llama.cpp has them."""

    def write(self, writer: gguf.GGUFWriter, folder: Path) -> None:
        """Its keys, with special tokens, merges and the chat template of the folder."""
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        known = gguf.SpecialVocab(folder, load_merges=self.model == "gpt2", n_vocab=len(self.tokens))
        known.special_token_ids |= dict(zip(("eos", "eot", "eom"), self.ends, strict=False))
        for kind, token in (("bos", self.first), ("eos", self.last)):
            if token is not None:
                known.special_token_ids.setdefault(kind, token)
        known.add_special_token = {}
        known.add_to_gguf(writer, quiet=True)
        writer.add_add_bos_token(self.first is not None)
        writer.add_add_eos_token(self.last is not None)
        if self.model == "llama":
            writer.add_add_space_prefix(self.space)


def find(
    folder: Path, config: Json, ends: tuple[int, ...], described: Callable[[Path], gguf.GGUFWriter], scratch: Path
) -> Vocabulary:  # fmt: skip
    """The vocabulary of a folder, as llama.cpp reads every text that is tried. Raises NotPossible.

    `ends`: the tokens that end what the model writes. `described(path)` gives a writer with the keys of the architecture; `scratch` is a
    folder for files without weights.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise NotPossible("its tokenizer has no tokenizer.json")
    try:
        plain = Tokenizer.from_file(str(path))
        said: Json = json.loads(path.read_bytes())
    except Exception as error:  # tokenizers raises types of its own, all of them about the file
        raise NotPossible(f"its tokenizer.json can't be read ({' '.join(str(error).split())[:160]})") from error
    plain.no_padding()
    plain.no_truncation()
    added = sorted(str(entry["content"]) for entry in said.get("added_tokens", ()))
    texts = (*TEXTS, *added, *(f"a {token}b {token}" for token in added[:50]))
    wanted = {text: list(plain.encode(text).ids) for text in texts}
    closest, differs = 0, "none was tried"
    for candidate in _candidates(said, config, _around(plain), ends):
        file = scratch / "vocabulary.gguf"
        writer = described(file)
        candidate.write(writer, folder)
        writer.write_header_to_file(file)
        writer.write_kv_data_to_file()
        writer.close()
        try:
            with library.Model(file, vocabulary_only=True) as model:
                read = {text: ids for text in texts if (ids := model.encode(text)) != wanted[text]}
                spaced = {text: list(plain.encode(_spaced(text, added)).ids) for text in read if candidate.space}
                wrong = next((at for at, text in enumerate(texts) if text in read and read[text] != spaced.get(text)), None)
                if wrong is None:
                    chats = tuple(_chats_apart(model, plain, folder, added)) if read else ()
                    return replace(candidate, more_spaces=bool(read), chats=chats)
                if wrong >= closest:
                    text = texts[wrong]
                    closest, differs = wrong, f"reads {text!r} as {read[text][:12]} instead of {wanted[text][:12]}"
        except library.Refused as error:
            differs = differs if closest else f"does not take it: {error}"
        finally:
            file.unlink(missing_ok=True)
    raise NotPossible(f"llama.cpp's tokenizer {differs}")


def _spaced(text: str, tokens: list[str]) -> str:
    """The text with the spaces that llama.cpp adds. `tokens`: those that stand for themselves."""
    parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
    return "".join(f" {part}" if part and place % 2 == 0 and (place or part[0] == " ") else part for place, part in enumerate(parts))


def _chats_apart(model: library.Model, plain: Tokenizer, folder: Path, tokens: list[str]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the chats, as the folder's template writes them, that llama.cpp reads otherwise. NotPossible for more than spaces."""
    template = chat.read((folder,), folder)
    for turns in CHATS if template is not None else ():
        messages = [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)]
        try:
            text = template.write({"messages": messages}, answer=True) if template is not None else ""
        except RowRefused:
            continue
        read = model.encode(text, special=False)
        wanted, spaced = (list(plain.encode(it, add_special_tokens=False).ids) for it in (text, _spaced(text, tokens)))
        if read not in (wanted, spaced):
            raise NotPossible(f"llama.cpp's tokenizer reads the chat {text[:200]!r} otherwise")
        if read != wanted:
            yield wanted, read


def _around(plain: Tokenizer) -> tuple[int | None, int | None]:
    """The tokens that the tokenizer puts before and behind a text. Raises NotPossible for more than one."""
    bare, full = list(plain.encode("a", add_special_tokens=False).ids), list(plain.encode("a").ids)
    at = next((at for at in range(len(full) - len(bare) + 1) if full[at : at + len(bare)] == bare), None)
    if at is None or at > 1 or len(full) - at - len(bare) > 1:
        raise NotPossible("its tokenizer puts more than one token around a text, which a GGUF file can't say")
    return full[0] if at else None, full[-1] if at + len(bare) < len(full) else None


def _candidates(
    said: Json, config: Json, around: tuple[int | None, int | None], ends: tuple[int, ...]
) -> Iterator[Vocabulary]:  # fmt: skip
    model = said.get("model") or {}
    if model.get("type") != "BPE":
        raise NotPossible(f"its tokenizer is a {model.get('type')} model, and llama.cpp's decoders have BPE")
    if "ByteLevel" in json.dumps([said.get("pre_tokenizer"), said.get("decoder")]):
        tokens, types = _tokens(said, int(config["vocab_size"]))
        first = USUAL.get(str(config.get("model_type")), "qwen2")
        for name in dict.fromkeys((first, *BYTE_LEVEL)):
            yield Vocabulary("gpt2", name, tokens, types, None, *around, ends)
        return
    if not model.get("byte_fallback"):
        raise NotPossible("its tokenizer is neither a byte-level BPE nor one of SentencePiece with bytes")
    tokens, types = _tokens(said, int(config["vocab_size"]), sentencepiece=True)
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    ranks = {"".join(pair): rank for rank, pair in reversed(list(enumerate(pairs)))}
    scores = [-float(ranks.get(token, 0 if kind is not gguf.TokenType.UNUSED else 1e4)) for token, kind in zip(tokens, types, strict=True)]
    for space in (False, True):
        yield Vocabulary("llama", "default", tokens, types, scores, *around, ends, space=space)


def _tokens(said: Json, size: int, *, sentencepiece: bool = False) -> tuple[list[str], list[gguf.TokenType]]:
    """Token and type of each id."""
    tokens = [f"[PAD{number}]" for number in range(size)]
    types = [gguf.TokenType.UNUSED] * size
    unknown = said["model"].get("unk_token")
    named = [(str(token), int(number), gguf.TokenType.NORMAL) for token, number in said["model"]["vocab"].items()]
    if sentencepiece:
        named = [(token, number, _piece(token, unknown)) for token, number, _ in named]
    kinds = (gguf.TokenType.USER_DEFINED, gguf.TokenType.CONTROL)
    for entry in said.get("added_tokens", ()):
        kind = kinds[bool(entry.get("special"))]
        named.append(
            (str(entry["content"]), int(entry["id"]), gguf.TokenType.UNKNOWN if sentencepiece and entry["content"] == unknown else kind)
        )
    for token, number, kind in named:
        if number >= size:
            raise NotPossible(f"its tokenizer has the token {token!r} with the id {number:,}, and its embeddings have {size:,} rows")
        tokens[number], types[number] = token, kind
    return tokens, types


def _piece(token: str, unknown: str | None) -> gguf.TokenType:
    if token == unknown:
        return gguf.TokenType.UNKNOWN
    return gguf.TokenType.BYTE if len(token) == 6 and token.startswith("<0x") and token.endswith(">") else gguf.TokenType.NORMAL
