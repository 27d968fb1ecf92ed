"""Rows as the model at hand reads them: conversations through its own chat template, sources without their translations, texts cut to size.

Called by `selection`. What it needs of the model lies in the model's folder; nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.messages import StageContext
from handlers.models.files import has_tokenizer
from handlers.models.tasks import Kind, task_of
from handlers.texts import chat
from handlers.texts.chat import ChatTemplate
from handlers.texts.rows import RowRefused, Text, Turn

CHARACTERS = 2048
"""Of a text from a data set: about 500 tokens of English. A whole conversation or article would take a reference minutes on a CPU."""
_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


@dataclass(frozen=True)
class ModelFiles:
    """Where the files lie that say how a model reads texts."""

    config: Path
    """Folder of its config.json."""
    tokenizers: tuple[Path, ...]
    """Folders that may have its tokenizer and its chat template; the first that has wins, for each of both."""

    @classmethod
    def in_folder(cls, folder: Path) -> ModelFiles:
        """Of a model that has all of them in one folder."""
        return cls(folder, (folder,))

    @classmethod
    def of_job(cls, context: StageContext, folder: Path | None = None) -> ModelFiles:
        """Of the model of a job, the same for all of its stages: the merged configuration, and tokenizer and template of the checkpoint,
        else of its base, as every export copies them. `folder`: a model's, for a stage that is run without the merge."""
        merged = context.inputs.get("merge")
        if merged is None and folder is not None:
            return cls.in_folder(folder)
        pin = Path(context.pin)
        return cls(pin if merged is None else Path(merged), (pin, Path(context.base)) if context.base else (pin,))

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer."""
        return next((folder for folder in self.tokenizers if has_tokenizer(folder)), self.tokenizers[0])


@dataclass(frozen=True)
class Rendering:
    """How texts are written for a model."""

    kind: Kind = "causal"
    template: ChatTemplate | None = None
    begins: str = ""
    """The token that the tokenizer itself puts first: a template's own one would be a second."""

    @classmethod
    def of(cls, files: ModelFiles) -> Rendering:
        """For the model whose files lie there."""
        try:
            task = task_of(files.config)
        except CkptdError:
            task = None
        template = chat.read(files.tokenizers, files.tokenizer)
        return cls(task.kind if task else "causal", template, _begins(files.tokenizer, template))

    def write(self, text: Text) -> Text:
        """Return the text as the model reads it, cut. Raises RowRefused where the template does not take it, or where nothing is left."""
        if self.kind == "seq2seq":
            written = _source(text)
        elif self.kind == "encoder":
            written = replace(
                text, text=text.text or "\n".join(turn.content for turn in text.turns), prompt=None, completion=None, spans=()
            )
        elif not text.turns:
            written = text
        elif self.template is not None:
            written = self._conversation(text.turns, self.template)
        else:
            written = _dialogue(text)
        written = replace(written, turns=(), label=text.label).cut(CHARACTERS)
        if not written.text.strip():
            raise RowRefused("no text is left of it")
        return written

    def _conversation(self, turns: Sequence[Turn], template: ChatTemplate) -> Text:
        whole = template.render(turns)
        spans, after = [], 0
        for number, turn in enumerate(turns):
            if turn.role != "assistant":
                continue
            start, end = len(template.render(turns[:number], answer=True)), len(template.render(turns[: number + 1]))
            if whole[:start] != template.render(turns[:number], answer=True) or whole[:end] != template.render(turns[: number + 1]):
                # It writes earlier turns otherwise than the last one: the words are looked for.
                start = whole.find(turn.content.strip(), after)
                end = start + len(turn.content.strip())
            if 0 <= start < end:
                spans.append((start, end))
                after = end
        last = turns[-1]
        prompt = template.render(turns[:-1], answer=True) if last.role == "assistant" and len(turns) > 1 else None
        prompt = prompt if prompt is not None and whole.startswith(prompt) else None
        asked = next((turn.content for turn in reversed(turns[:-1]) if turn.role == "user"), None) if prompt is not None else None
        made = Text(whole, prompt, last.content.strip() if prompt is not None else None, tuple(spans), question=asked)
        return _without(made, self.begins)


def _begins(folder: Path, template: ChatTemplate | None) -> str:
    """Return the first special token, where the tokenizer adds it by itself."""
    token = template.tokens.get("bos_token") if template is not None else None
    path = folder / "tokenizer.json"
    if not isinstance(token, str) or not token or not path.is_file():
        return ""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()  # on the left it would hide the token
        return token if tokenizer.encode("a").tokens[:1] == [token] else ""
    except Exception:  # a tokenizer that can't be read is another stage's finding
        return ""


def _without(text: Text, beginning: str) -> Text:
    if not beginning or not text.text.startswith(beginning):
        return text
    shift = len(beginning)
    prompt = text.prompt[shift:] if text.prompt is not None and text.prompt.startswith(beginning) else None
    spans = tuple((start - shift, end - shift) for start, end in text.spans)
    return replace(text, text=text.text[shift:], prompt=prompt, completion=text.completion if prompt is not None else None, spans=spans)


def _source(text: Text) -> Text:
    """Return what an encoder-decoder reads, with what it should make of it."""
    if text.turns and text.prompt is None:
        said = text.turns[-1].role == "assistant" and len(text.turns) > 1
        asked = [turn.content for turn in (text.turns[:-1] if said else text.turns) if turn.role != "system"]
        return Text(asked[-1] if asked else "", completion=text.turns[-1].content if said else None)
    return Text(text.text if text.prompt is None else text.prompt, completion=text.completion)


def _dialogue(text: Text) -> Text:
    """Return a conversation for a model without a template: instructions as Alpaca writes them, others with names before them."""
    if text.prompt is not None and text.completion is not None:
        prompt = f"### Instruction:\n{text.prompt}\n\n### Response:\n"
        return Text(prompt + text.completion, prompt, text.completion, ((len(prompt), len(prompt) + len(text.completion)),))
    written, prompt, completion = "", "", None
    spans: list[tuple[int, int]] = []
    for turn in text.turns:
        head = f"{_NAMES.get(turn.role, turn.role)}: "
        if turn.role == "assistant":
            prompt, completion = (written + head).rstrip(" "), turn.content
            spans.append((len(written + head) - 1, len(written + head + turn.content)))
        else:
            prompt, completion = "", None
        written += head + turn.content + "\n"
    written = written.rstrip()
    marked = tuple((start, min(end, len(written))) for start, end in spans if start < len(written))
    if len(text.turns) < 2 or completion is None:
        return Text(written, spans=marked)
    return Text(written, prompt, completion, marked)
