"""Classify, tag, answer, fill in or embed texts with the model in this folder; which of these, the model says.

    python example.py "I like this."                                 (a class, spans of the text, or a vector)
    python example.py "I like this." "I do not." --query "Do I?"     (vectors of several texts, and how similar they are)
    python example.py "It rains." --pair "The street is wet."        (two texts as one input)
    python example.py "Who wrote it?" --context "Ada wrote it."      (question answering)
    python example.py "Paris is in [MASK]."                          (masked models)

Needs onnxruntime, tokenizers and numpy. Answers in JSON; start and end count characters of the text as Python does. Inputs run one at a
time, so none is padded. Tags and answers are looked for in the whole of a long text, in windows that overlap; other tasks read its
beginning, and say so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers

FOLDER = Path(__file__).resolve().parent
ANSWER_TOKENS = 30
"""Tokens of the longest answer to a question."""
QUESTION_LIMIT, QUESTION_STRIDE = 384, 128
"""Tokens of a question with a part of its context, and those that neighbouring parts share, as models are trained for it."""
BEHIND_PADDING = (
    "roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "longformer", "mpnet", "ibert",
)  # fmt: skip
"""Models that number positions from behind the padding token's number on, so that they have fewer."""

Outputs = dict[str, np.ndarray]
"""A graph's outputs by name, each for a batch of one."""


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder; empty where it is missing."""
    path = FOLDER / name
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value


CONFIG, TOKENS = read("config.json"), read("tokenizer_config.json")
SENTENCES = read("config_sentence_transformers.json")
LENGTHS: dict[str, Any] = next((read(path.name) for path in sorted(FOLDER.glob("sentence_*_config.json"))), {})


def load_tokenizer() -> Tokenizer:
    """The folder's tokenizer, which neither pads nor truncates."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if LENGTHS.get("do_lower_case"):
        tokenizer.normalizer = Normalizers([Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])])
    return tokenizer


def limit() -> int:
    """Tokens of one input at most."""
    positions = CONFIG.get("max_position_embeddings") or CONFIG.get("n_positions")
    if isinstance(positions, int) and CONFIG.get("model_type") in BEHIND_PADDING:
        positions -= int(CONFIG.get("pad_token_id") or 0) + 1
    bounds = (positions, TOKENS.get("model_max_length"), LENGTHS.get("max_seq_length"))
    return int(min(bound for bound in (*bounds, 1_000_000) if isinstance(bound, (int, float)) and bound > 0))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def label(number: int) -> str:
    """Name of a class."""
    return str((CONFIG.get("id2label") or {}).get(str(number), f"LABEL_{number}"))


def threshold(number: int) -> float:
    """Probability from which on a text has a label; config.json may have one for all, or one for each by number or name."""
    said = CONFIG.get("thresholds", CONFIG.get("threshold", 0.5))
    if isinstance(said, dict):
        said = said.get(label(number), said.get(str(number), 0.5))
    elif isinstance(said, list):
        said = said[number] if number < len(said) else 0.5
    return float(said) if isinstance(said, (int, float)) else 0.5


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A span without the spaces at its ends, which some tokens begin with."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def session(name: str) -> Any:
    """One of the graphs."""
    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])


class Model:
    """The graph and its tokenizer."""

    def __init__(self, length: int | None) -> None:
        self.tokenizer = load_tokenizer()
        self.length = length or limit()
        self.side = TOKENS.get("truncation_side") or "right"
        self.session = session("model.onnx")
        self.seen: list[dict[str, np.ndarray]] = []
        """Inputs and outputs of each run."""

    def token(self, name: str, *usual: str) -> str | None:
        """The text of a special token: as the tokenizer's files name it, else the first of `usual` that the tokenizer has."""
        said = TOKENS.get(name) or read("special_tokens_map.json").get(name)
        said = said.get("content") if isinstance(said, dict) else said
        return next((text for text in (said, *usual) if text and self.tokenizer.token_to_id(text) is not None), None)

    def encode(self, text: str, pair: str | None = None) -> Any:
        """Tokens of one text or of two, at most as many as the model reads."""
        self.tokenizer.no_truncation()
        whole = self.tokenizer.encode(text, pair)
        if len(whole.ids) <= self.length:
            return whole
        print(f"Only {self.length} of {len(whole.ids)} tokens are read: the rest is cut off.", file=sys.stderr)
        self.tokenizer.enable_truncation(self.length, direction=self.side)
        return self.tokenizer.encode(text, pair)

    def windows(self, text: str, pair: str | None, length: int, stride: int, strategy: str = "longest_first") -> list[Any]:
        """The same, as windows that share `stride` tokens, if the text is longer."""
        self.tokenizer.enable_truncation(length, stride=stride, strategy=strategy)
        whole = self.tokenizer.encode(text, pair)
        return [whole, *whole.overflowing]

    def run(self, encoding: Any) -> Outputs:
        """The outputs for one input."""
        given = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
        feeds = {port.name: np.array([given[port.name]], np.int64) for port in self.session.get_inputs()}
        names = [port.name for port in self.session.get_outputs()]
        outputs = {name: np.asarray(value, np.float32) for name, value in zip(names, self.session.run(names, feeds), strict=True)}
        self.seen.append({**feeds, **outputs})
        return outputs


def classes(model: Model, text: str, options: argparse.Namespace) -> Any:
    """Each class with its probability, the likeliest first; the values of a model that measures."""
    logits = model.run(model.encode(text, options.pair))["logits"][0]
    kind = CONFIG.get("problem_type")
    if kind == "regression":
        return [{"label": label(number), "value": round(float(value), 6)} for number, value in enumerate(logits)]
    each = kind == "multi_label_classification" or len(logits) == 1
    shares = 1 / (1 + np.exp(-logits.astype(np.float64))) if each else softmax(logits)
    rows: list[dict[str, Any]] = [{"label": label(number), "score": round(float(share), 4)} for number, share in enumerate(shares)]
    if kind == "multi_label_classification":
        for number, share in enumerate(shares):
            rows[number] |= {"threshold": threshold(number), "chosen": bool(share >= threshold(number))}
    elif each:  # one number, which config.json does not explain: a measure, or a class that a text is of or not
        rows[0]["value"] = round(float(logits[0]), 6)
    return [rows[number] for number in np.argsort(-shares, kind="stable")]


def spans(model: Model, text: str, options: argparse.Namespace) -> Any:
    """Neighbouring tokens of one label as a span: B- begins one, I- continues one, O is none."""
    listed: list[dict[str, Any]] = []
    windows = model.windows(text, None, model.length, stride(model.length, options))
    for window in windows:
        groups: list[dict[str, Any]] = []
        last = ""
        for token, shares in enumerate(softmax(model.run(window)["logits"][0])):
            if window.special_tokens_mask[token]:
                continue
            name, score, (start, end) = label(int(shares.argmax())), float(shares.max()), window.offsets[token]
            kind = name[2:] if name[:2] in ("B-", "I-") else name
            if not groups or kind != last or name.startswith("B-"):
                # The name without what stands before its first dash, as transformers' pipelines show it.
                groups.append({"label": name.split("-", 1)[-1], "scores": [], "start": start, "end": end})
            groups[-1]["scores"].append(score)
            groups[-1]["end"] = end
            last = kind
        listed += [group for group in groups if group["label"] != "O"]
    rows = []
    for span in without_overlaps(listed) if len(windows) > 1 else listed:
        start, end = trimmed(text, span["start"], span["end"])
        if start < end:
            rows.append({"label": span["label"], "score": round(mean(span), 4), "start": start, "end": end, "text": text[start:end]})
    return rows


def mean(span: dict[str, Any]) -> float:
    """A span's probability: the mean of its tokens'."""
    return float(np.mean(span["scores"]))


def without_overlaps(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Spans in the text's order; of two that overlap, as windows do, the longer one, and of two equally long ones the likelier."""
    kept: list[dict[str, Any]] = []
    for span in sorted(listed, key=lambda span: span["start"]):
        if not kept or not kept[-1]["start"] <= span["start"] < kept[-1]["end"]:
            kept.append(span)
        elif (span["end"] - span["start"], mean(span)) > (kept[-1]["end"] - kept[-1]["start"], mean(kept[-1])):
            kept[-1] = span
    return kept


def stride(length: int, options: argparse.Namespace) -> int:
    """Tokens that neighbouring windows share."""
    return min(length // 4 if options.stride is None else options.stride, max(0, length - 8))


def answers(model: Model, question: str, options: argparse.Namespace) -> Any:
    """The likeliest spans of the context: by the sum of their start's and their end's logits, over all parts of a long context.

    With --no-answer, that there is none counts too: the logits at the first token, in the part where they are lowest.
    """
    context = options.context
    if context is None:
        sys.exit("A question is asked about a text: add --context TEXT")
    # Models that are padded on the left are trained with the context before the question.
    left = TOKENS.get("padding_side") == "left"
    length = options.length or min(model.length, QUESTION_LIMIT)
    overlap = min(length // 2, QUESTION_STRIDE) if options.stride is None else options.stride
    asked = len(model.tokenizer.encode(question, "").ids)
    overlap = min(overlap, length - asked - 8)
    if overlap < 0:
        sys.exit(f"The question has {asked} tokens, which leaves no place for a context: the model reads {length} tokens at once")
    first, second, which = (context, question, 0) if left else (question, context, 1)
    best: dict[tuple[int, int], float] = {}
    nothing, named = np.inf, model.token("cls_token", "[CLS]", "<s>")
    none = model.tokenizer.token_to_id(named) if named else None
    for window in model.windows(first, second, length, overlap, "only_first" if left else "only_second"):
        outputs = model.run(window)
        starts, ends = (outputs[name][0].astype(np.float64) for name in ("start_logits", "end_logits"))
        place = window.ids.index(none) if none in window.ids else 0
        nothing = min(nothing, float(starts[place] + ends[place]))
        inside = [token for token, of in enumerate(window.sequence_ids) if of == which and not window.special_tokens_mask[token]]
        for begin in inside:
            for stop in range(begin, min(begin + ANSWER_TOKENS, inside[-1] + 1)):
                span = trimmed(context, window.offsets[begin][0], window.offsets[stop][1])
                if span[0] < span[1]:
                    best[span] = max(best.get(span, -np.inf), float(starts[begin] + ends[stop]))
    if options.no_answer or not best:
        best[0, 0] = nothing
    ordered = sorted(best, key=lambda span: -best[span])
    shares = softmax(np.array([best[span] for span in ordered]))
    return [
        {"answer": context[start:end], "score": round(float(share), 4), "start": start, "end": end}
        for (start, end), share in zip(ordered[: options.top], shares[: options.top], strict=True)
    ]


def fillings(model: Model, text: str, options: argparse.Namespace) -> Any:
    """For each mask in the text, in its order, the likeliest tokens; with one mask, the whole text with each of them too."""
    mask = model.token("mask_token", "[MASK]", "<mask>")
    if mask is None:
        sys.exit("The tokenizer's files name no mask_token")
    encoding, number = model.encode(text.replace("[MASK]", mask), options.pair), model.tokenizer.token_to_id(mask)
    places = [place for place, token in enumerate(encoding.ids) if token == number]
    if not places:
        sys.exit(f"The text needs a {mask} (or [MASK]) where something is to be filled in, among the {model.length} tokens that are read")
    logits, filled = model.run(encoding)["logits"][0], []
    for place in places:
        shares, rows = softmax(logits[place]), []
        for token in map(int, np.argsort(-shares, kind="stable")[: options.top]):
            rows.append({"token": token, "text": model.tokenizer.decode([token]), "score": round(float(shares[token]), 4)})
            if len(places) == 1:
                rows[-1]["sequence"] = model.tokenizer.decode([*encoding.ids[:place], token, *encoding.ids[place + 1 :]])
        filled.append(rows)
    return single(filled)


def single(rows: list[Any]) -> Any:
    """The answer where there is but one."""
    return rows[0] if len(rows) == 1 else rows


def prompt_of(options: argparse.Namespace, *kinds: str) -> str:
    """What stands before a text: as asked, else the first that the model has for these kinds of texts; without kinds, its default."""
    prompts = {name: text for name, text in (SENTENCES.get("prompts") or {}).items() if text is not None}
    if options.prompt_text is not None:
        return str(options.prompt_text)
    if options.prompt is not None and options.prompt not in prompts:
        sys.exit(f"The model has no prompt {options.prompt!r}; it has: {', '.join(prompts) or 'none'}")
    usual = next((kind for kind in kinds if kind in prompts), None) if kinds else SENTENCES.get("default_prompt_name")
    return str(prompts.get(options.prompt or usual, ""))


def compared(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """How similar vectors (R, D) and (C, D) are, by the model's own measure (R, C); larger is more similar."""
    kind = SENTENCES.get("similarity_fn_name") or "cosine"
    if kind in ("euclidean", "manhattan"):
        order = 2 if kind == "euclidean" else 1
        distances: np.ndarray = -np.linalg.norm(rows[:, None] - columns[None], ord=order, axis=-1)
        return distances
    if kind != "dot":
        rows, columns = (made / np.maximum(np.linalg.norm(made, axis=-1, keepdims=True), 1e-12) for made in (rows, columns))
    products: np.ndarray = rows @ columns.T
    return products


def vectors(model: Model, texts: Sequence[str], options: argparse.Namespace) -> Any:
    """A vector for each text and their similarity; of a query, its vector first. For a model without pooling, a vector for each token."""
    if "sentence_embedding" not in [port.name for port in model.session.get_outputs()]:
        of_texts = []
        for text in texts:
            encoding = model.encode(text, options.pair)
            of_texts.append({"tokens": encoding.tokens, "vectors": rounded(model.run(encoding)["last_hidden_state"][0])})
        return single(of_texts)
    kinds = ("document", "passage", "corpus") if options.query is not None else ()
    pairs = [(prompt_of(options, *kinds), text) for text in texts]
    if options.query is not None:
        pairs.insert(0, (prompt_of(options, "query"), options.query))
    pooling = [read(f"{module['path']}/config.json") for module in modules() if str(module.get("type", "")).endswith(".Pooling")]
    if any(prompt for prompt, _ in pairs) and any(config.get("include_prompt") is False for config in pooling):
        sys.exit(
            "This model's vectors leave the prompt's tokens out, which the graph can't do: use SentenceTransformer, or --prompt-text ''"
        )
    made = np.stack([model.run(model.encode(prompt + text))["sentence_embedding"][0] for prompt, text in pairs])
    split = 0 if options.query is None else 1
    similar = compared(made[:split], made[split:]) if split else compared(made, made)
    return {"size": made.shape[1], "embeddings": rounded(made), "similarity": rounded(similar[0] if split else similar)}


def modules() -> list[dict[str, Any]]:
    """What modules.json lists."""
    path = FOLDER / "modules.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return rows


def rounded(values: np.ndarray) -> list[Any]:
    """As lists for JSON."""
    return list(np.round(values.astype(np.float64), 6).tolist())


EACH: dict[str, Callable[[Model, str, argparse.Namespace], Any]] = {
    "text-classification": classes, "token-classification": spans, "question-answering": answers, "fill-mask": fillings,
}  # fmt: skip
"""What is made of one text."""


def main() -> None:
    """Print the answer as JSON: of several texts, a list of answers."""
    parser = argparse.ArgumentParser(description="Run an encoder model on texts.")
    parser.add_argument("text", nargs="*", help="texts; for question answering, questions")
    parser.add_argument("--context", help="where to look for the answer to a question")
    parser.add_argument("--pair", help="a second text of the same input: what the first one is compared with")
    parser.add_argument("--query", help="what the texts' vectors are compared with, as a search does; with the prompts for that")
    parser.add_argument("--prompt", help="name of the prompt to put before texts, of those in config_sentence_transformers.json")
    parser.add_argument("--prompt-text", help="another text to put before texts; '' for none")
    parser.add_argument("--no-answer", action="store_true", help="the context may hold no answer, for models that learnt to say so")
    parser.add_argument("--top", type=int, default=5, help="answers, or tokens for a mask, that are shown (default: 5)")
    parser.add_argument("--length", type=int, help="tokens of one input at most (default: what the model's files say)")
    parser.add_argument("--stride", type=int, help="tokens that windows of a long text share")
    parser.add_argument(
        "--npz", help="write the graph's inputs and outputs to this file for numpy too; of several runs, 0.logits, 1.logits…"
    )
    options = parser.parse_args()
    task, model = read("graphs.json")["task"], Model(options.length)
    texts = options.text or ["The sky is [MASK]." if task == "fill-mask" else "I like this."]
    if task == "feature-extraction":
        result = vectors(model, texts, options)
    else:
        result = single([EACH[task](model, text, options) for text in texts])
    if options.npz:
        runs: dict[str, dict[str, Any]] = (
            {f"{number}.": values for number, values in enumerate(model.seen)} if len(model.seen) > 1 else {"": model.seen[0]}
        )
        np.savez(options.npz, **{before + name: value for before, values in runs.items() for name, value in values.items()})
    print(json.dumps(result, ensure_ascii=False))


if __name__ == "__main__":
    main()
