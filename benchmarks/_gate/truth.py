"""What an artifact really changes, on many texts that the gate never reads: by transformers, PEFT and ONNX Runtime, without its code.

The live model and the sound merge are read once a subject. A share and a mean come with their standard errors, clustered by text.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks._gate.subjects import Subject

TEXTS, TOKENS, WRITTEN = 256, 32, 16
"""Texts of a language model, the tokens of each, and how many the live model writes after them."""
CLASSIFIED = 1024
NEAR = 0.1
"""Of the spread of all cosines: texts as near as that are equally good answers of a search."""
CHANGED = 0.25
"""Share of the positions at which the adapter changes most."""
NOTHING = 1e-6
ROWS = 64
"""Of a pass."""
REPACKS = "support_avx512bf16_for_cpu"
"""What makes bitsandbytes' 4-bit layers repack their weights for a kernel that only some processors have."""
STAGED = "staging"
"""Name of a folder that a stage made."""
SURE = 1.96
"""Standard errors of a 95 % interval."""


@dataclass(frozen=True)
class Estimate:
    """A mean over texts with its standard error."""

    value: float
    error: float

    @property
    def least(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - SURE * self.error

    @property
    def most(self) -> float:
        """Upper end."""
        return self.value + SURE * self.error


@dataclass(frozen=True)
class Truth:
    """How far an artifact is from the live model on these texts."""

    flips: Estimate
    """Share of the choices that are not the live model's."""
    kl: Estimate | None
    """Nats; None of vectors."""
    differs: Any = None
    """Whether each choice differs: (texts, choices)."""
    tuned: float | None = None
    """Share of the fine-tuning's effect; None where there is none to measure."""

    def beyond(self, sound: Truth) -> Estimate:
        """Give what share it changes more than the sound artifact of the same form does."""
        return _mean(self.differs.double() - sound.differs.double())


def _divergence(wanted: Any, given: Any) -> Any:
    """Give KL(wanted ‖ given) of each position, of logarithms of probabilities."""
    import torch

    return torch.nn.functional.kl_div(given, wanted, reduction="none", log_target=True).sum(-1)


def _mean(values: Any) -> Estimate:
    """Give the mean of (texts, positions), its error by text."""
    texts = values.double().mean(dim=1)
    error = float(texts.std()) / math.sqrt(len(texts))
    return Estimate(float(texts.mean()), error if math.isfinite(error) else math.inf)


class Teller:
    """Tells the truth about the artifacts of one subject."""

    def __init__(self, subject: Subject, texts: int = TEXTS) -> None:
        """`texts`: of a language model; a classifier reads four times as many."""
        import torch

        self._subject, self._family = subject, subject.kind.family
        self._count = texts * (CLASSIFIED // TEXTS if self._family in ("classes", "vectors") else 1)
        self._ids, self._mask = self._encoded()
        self._written: Any = None
        with torch.inference_mode():
            live = self._live()
            if self._family in ("causal", "seq2seq"):
                self._written = self._continued(live)
            self._outputs = self._answers(live)
            self._choices = None if self._family == "vectors" else self._outputs.argmax(-1)
            self._logs = None if self._family == "vectors" else self._outputs.log_softmax(-1)
            if self._logs is not None:
                self._base, self._changed, self._apart = self._of_base(live)

    def truth(self, folder: Path) -> Truth:
        """Measure a folder of transformers."""
        import torch

        with torch.inference_mode():
            mine = self._answers(self._loaded(folder))
            if self._family == "vectors":
                differs = _finds_others(self._outputs, mine)[:, None]
                return Truth(_mean(differs), None, differs)
            differs = (mine.argmax(-1) != self._choices) | ~torch.isfinite(mine).all(-1)
            logs = mine.log_softmax(-1)
            apart = _divergence(self._logs, logs)
            return Truth(_mean(differs), _mean(apart.nan_to_num(math.inf)), differs, self._share(logs, apart))

    def _of_base(self, live: Any) -> tuple[Any, Any, float]:
        """Give what the base says without the adapter, where that differs most from the live model, and by how much it does there."""
        with live.disable_adapter():
            base = self._answers(live).log_softmax(-1)
        apart = _divergence(self._logs, base)
        changed = apart >= apart.quantile(1 - CHANGED)
        return base, changed, float(apart[changed].mean())

    def _share(self, logs: Any, apart: Any) -> float | None:
        """Give how much of the adapter's effect is there: 1 all, 0 nothing; None where it has none that could be measured."""
        if self._apart < NOTHING:
            return None
        from_base = _divergence(self._base, logs)[self._changed]
        return 0.5 + float(from_base.mean() - apart[self._changed].mean()) / (2 * self._apart)

    def reads_otherwise(self, folder: Path) -> bool:
        """Tell whether transformers takes other ids, texts of a conversation or end tokens from a folder than from the sound one."""
        return _as_read(folder) != _as_read(self._subject.merged)

    def _encoded(self) -> tuple[Any, Any]:
        """Give token ids (texts, TOKENS), and where they are text."""
        import torch
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._subject.base)
        if self._family == "causal":
            rows = (tokenizer(text)["input_ids"][:TOKENS] for text in self._subject.texts)
            whole = list(itertools.islice((row for row in rows if len(row) == TOKENS), self._count))
            return torch.tensor(whole), torch.ones(len(whole), TOKENS, dtype=torch.long)
        texts = [text[: 24 + number % 40] for number, text in enumerate(itertools.islice(self._subject.texts, self._count))]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        return batch["input_ids"], batch["attention_mask"]

    def _live(self) -> Any:
        import torch
        import transformers
        from peft import PeftModel

        subject = self._subject
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            base = getattr(transformers, subject.kind.auto).from_pretrained(subject.base, dtype=torch.float32, **subject.kind.load)
            return PeftModel.from_pretrained(base, str(subject.checkpoint)).eval()

    def _loaded(self, folder: Path) -> Any:
        """Load a folder as its users do: a merge in fp32, another form in the arithmetic that it names."""
        import torch
        import transformers

        if graphs := sorted(folder.glob("*.onnx")):
            (file,) = graphs
            return _Graph(file)
        packed = "quantization_config" in json.loads((folder / "config.json").read_text())
        dtype = "auto" if packed or folder.name == STAGED else torch.float32
        model = getattr(transformers, self._subject.kind.auto).from_pretrained(folder, dtype=dtype).eval()
        for module in model.modules():
            if hasattr(module, REPACKS):
                setattr(module, REPACKS, False)
        return model

    def _continued(self, live: Any) -> Any:
        """Give what the live model writes greedily: after the texts, or about them."""
        lengths = {"min_new_tokens": WRITTEN, "max_new_tokens": WRITTEN, "do_sample": False, "num_beams": 1}
        return live.generate(input_ids=self._ids, attention_mask=self._mask, **lengths)

    def _answers(self, model: Any) -> Any:
        """Give outputs (texts, positions, V); of vectors (texts, V)."""
        import torch

        if self._family == "causal":
            return torch.cat([model(input_ids=rows, use_cache=False).logits.float() for rows in self._written.split(ROWS)])
        if self._family == "seq2seq":
            parts = zip(*(rows.split(ROWS) for rows in (self._ids, self._mask, self._written)), strict=True)
            return torch.cat([
                model(input_ids=ids, attention_mask=mask, decoder_input_ids=written, use_cache=False).logits.float()
                for ids, mask, written in parts
            ])  # fmt: skip
        outputs = model(input_ids=self._ids, attention_mask=self._mask)
        if self._family == "classes":
            return outputs.logits.float()[:, None]
        mask = self._mask[..., None].float()
        return (outputs.last_hidden_state.float() * mask).sum(1) / mask.sum(1)


class _Graph:
    """A model as one graph, run by ONNX Runtime; called like one of transformers'."""

    def __init__(self, file: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def __call__(self, *, input_ids: Any, attention_mask: Any = None, use_cache: bool = False) -> Any:
        import torch

        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        known = {
            "input_ids": input_ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(input_ids),
            "position_ids": torch.arange(input_ids.shape[1]).expand_as(input_ids),
        }  # fmt: skip
        feeds = {}
        for wanted in self._session.get_inputs():
            if wanted.name in known:
                feeds[wanted.name] = known[wanted.name].numpy()
            else:  # an empty cache
                shape = [len(input_ids), *(size if isinstance(size, int) else 0 for size in wanted.shape[1:])]
                feeds[wanted.name] = torch.zeros(shape, dtype=torch.float16 if "float16" in wanted.type else torch.float32).numpy()
        names = [given.name for given in self._session.get_outputs()][:1]
        return SimpleNamespace(**dict(zip(names, map(torch.from_numpy, self._session.run(names, feeds)), strict=True)))


def _finds_others(live: Any, mine: Any) -> Any:
    """Tell for which texts a search for the nearest other text gives one that the live model finds farther by more than NEAR."""
    alike, theirs = _cosines(live), _cosines(mine)
    chosen = alike.gather(1, theirs.argmax(1, keepdim=True))[:, 0]
    return alike.amax(1) - chosen > NEAR * alike[alike > -2].std()


def _cosines(vectors: Any) -> Any:
    import torch

    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    return (unit @ unit.T).fill_diagonal_(-2)


CONVERSATION = [{"role": "user", "content": "Why is the sky blue?"}, {"role": "assistant", "content": "Because."}]
TEXT = "def read(self, path):\n    with open(path) as stream:\n        return stream.read()\n"


def _as_read(folder: Path) -> tuple[Any, ...]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    written = tokenizer.apply_chat_template(CONVERSATION, tokenize=False) if tokenizer.chat_template else None
    settings = folder / "generation_config.json"
    ends = json.loads(settings.read_text()).get("eos_token_id") if settings.is_file() else None
    return tokenizer(TEXT)["input_ids"], written, ends
