"""Tiny encoder-decoders for the tests, and a translator of exported folders that needs onnxruntime and numpy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 96
_MARIAN = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "init_std": 0.5,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "pad_token_id": 0, "eos_token_id": 1,
    "decoder_start_token_id": 0,
}  # fmt: skip
_BART_TOKENS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
_MARIAN_TOKENS = {"pad_token_id": 70, "eos_token_id": 0, "decoder_start_token_id": 70, "forced_eos_token_id": 0}
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "marian": ("Marian", "MarianMTModel", {**_MARIAN, **_MARIAN_TOKENS}),
    "marian-two-vocabularies": (
        "Marian", "MarianMTModel",
        {**_MARIAN, **_MARIAN_TOKENS, "decoder_vocab_size": 80, "share_encoder_decoder_embeddings": False, "encoder_layers": 1,
         "decoder_layers": 1},
    ),
    "t5": ("T5", "T5ForConditionalGeneration", _T5),
    "t5-gated-untied": ("T5", "T5ForConditionalGeneration", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "bart": ("Bart", "BartForConditionalGeneration", {**_MARIAN, **_BART_TOKENS}),
    "mbart": ("MBart", "MBartForConditionalGeneration", {**_MARIAN, **_BART_TOKENS, "forced_bos_token_id": 17}),
    "pegasus": ("Pegasus", "PegasusForConditionalGeneration", {**_MARIAN, **_BART_TOKENS}),
    "m2m100": ("M2M100", "M2M100ForConditionalGeneration", {**_MARIAN, **_BART_TOKENS, "forced_bos_token_id": 17}),
}  # fmt: skip


def make(folder: Path, kind: str, **options: Any) -> Path:
    """A model with random weights and norms, wide enough that its argmax means something; written in fp32."""
    import torch
    import transformers

    torch.manual_seed(3)
    family, name, defaults = KINDS[kind]
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**{**defaults, **options}))
    for parameter_name, parameter in model.named_parameters():
        if "norm" in parameter_name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    # Random weights would say one token for ever.
    model.generation_config.no_repeat_ngram_size, model.generation_config.min_new_tokens = 1, 8
    if family == "Marian":
        model.generation_config.bad_words_ids = [[model.config.pad_token_id]]
    model.save_pretrained(folder)
    return folder


def teach(model: Any, *, steps: int, shift: int) -> Any:
    """Train a Marian for a few steps to give its source back, each token `shift` further; gives the model in evaluation mode."""
    import torch

    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-3)
    for _ in range(steps):
        ids = torch.randint(3, 60, (16, 6), generator=generator)
        model.train()(input_ids=ids, labels=ids + shift).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def sources(batch: int, length: int, *, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and a mask whose first row is padded on the right, unless it is alone."""
    ids = np.random.default_rng(seed).integers(3, 70, (batch, length))
    mask = np.ones_like(ids)
    if batch > 1:
        mask[0, -(-length * 2 // 3) :] = 0
    return ids, mask


def generated(source: Path, ids: np.ndarray, mask: np.ndarray, tokens: int) -> np.ndarray:
    """What transformers' greedy generation gives, the start token included."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32).eval()
    return greedy_of(model, ids, mask, tokens)


def greedy_of(model: Any, ids: np.ndarray, mask: np.ndarray, tokens: int) -> np.ndarray:
    """What a loaded model's greedy generation gives, the start token included."""
    import torch

    options = {"max_new_tokens": tokens, "num_beams": 1, "do_sample": False}
    answer: np.ndarray = model.generate(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), **options).numpy()
    return answer


class Translator:
    """Greedy decoding of an exported folder: by the pair of decoders, or by the merged one with a dummy past of some length."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        self.sessions = {
            path.name: onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in sorted(folder.glob("*.onnx"))
        }
        self.rules = {**json.loads((folder / "config.json").read_text()), **json.loads((folder / "generation_config.json").read_text())}
        self.cross_shapes: list[set[tuple[int, ...]]] = []
        """Shapes of all present.*.encoder.* of each step."""

    def translate(self, ids: np.ndarray, mask: np.ndarray, tokens: int, *, dummy: int | None) -> np.ndarray:
        """Token ids with the start token in front; `dummy` None takes the pair, a number the merged decoder."""
        states = self.sessions["encoder_model.onnx"].run(None, {"input_ids": ids, "attention_mask": mask})[0]
        fixed = {"encoder_attention_mask": mask, "encoder_hidden_states": states}
        rows, end, pad = len(ids), self.rules["eos_token_id"], self.rules["pad_token_id"]
        answer = np.full((rows, 1), self.rules["decoder_start_token_id"])
        done, cache = np.zeros(rows, bool), {}
        self.cross_shapes = []
        for _ in range(tokens):
            logits, cache = self._step({**fixed, "input_ids": answer[:, -1:]}, cache, dummy)
            chosen = np.where(done, pad, self.choose(logits[:, -1], answer, tokens))
            answer = np.concatenate([answer, chosen[:, None]], axis=1)
            done |= chosen == end
            if done.all():
                break
        return answer

    def _step(
        self, feeds: dict[str, np.ndarray], cache: dict[str, np.ndarray], dummy: int | None
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        name = "decoder_model_merged.onnx" if dummy is not None else "decoder_with_past_model.onnx" if cache else "decoder_model.onnx"
        session = self.sessions[name]
        past = {one.name: one.shape for one in session.get_inputs() if one.name.startswith("past_key_values.")}
        if dummy is not None:
            feeds = {**feeds, "use_cache_branch": np.array([bool(cache)])}
            rows = len(feeds["input_ids"])
            cache = cache or {one: np.full((rows, shape[1], dummy, shape[3]), 9.0, np.float32) for one, shape in past.items()}
        wanted = {one.name for one in session.get_inputs()}
        names = [one.name for one in session.get_outputs()]
        answers = dict(
            zip(names, session.run(None, {key: array for key, array in {**feeds, **cache}.items() if key in wanted}), strict=True)
        )
        logits = answers.pop("logits")
        self.cross_shapes.append({array.shape for one, array in answers.items() if ".encoder." in one})
        return logits, {one.replace("present.", "past_key_values.", 1): array for one, array in answers.items()}

    def choose(self, scores: np.ndarray, so_far: np.ndarray, last: int) -> np.ndarray:
        """The next token of each row after `so_far` (rows, tokens), by the folder's rules; `last` is the largest number of tokens."""
        step = so_far.shape[1]
        if self.rules.get("no_repeat_ngram_size") == 1:
            np.put_along_axis(scores, so_far, -np.inf, axis=1)
        for (word,) in self.rules.get("bad_words_ids") or []:
            scores[:, word] = -np.inf
        if step <= self.rules.get("min_new_tokens", 0):
            scores[:, self.rules["eos_token_id"]] = -np.inf
        forced = {1: self.rules.get("forced_bos_token_id"), last: self.rules.get("forced_eos_token_id")}.get(step)
        chosen: np.ndarray = scores.argmax(-1) if forced is None else np.full(len(scores), forced)
        return chosen
