"""What a worker can be asked, and what it answers: a model for each request and one for each answer.

Used by both ends of the pipe, `client` and `worker`. They cross it as JSON lines, a request with its `command` beside its fields; large
arrays go through .npy files. Numbers that JSON lacks (infinity, NaN) cross it as Python writes them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field

from daemon.contract.values import Frozen, Json
from handlers.validate.engines.reach import Reach

Ids = list[int]
"""Token ids, or the segment of each token."""


class Loaded(Frozen):
    """What a model says about itself once it is loaded."""

    vocabulary: int | None
    """Width of a row of outputs; None when only a run can tell."""
    context_length: int | None
    """Positions that the model can address; None when it does not say."""
    adapted: bool
    """Whether there is an adapter that can be left out of a pass."""
    together: bool = False
    """Whether many requests take little more time than one, if they are sent `Ahead`."""
    ends: tuple[int, ...] | None = None
    """Tokens at which the runtime ends a text by what its file says; None where nobody but the caller says so."""
    deviations: tuple[str, ...] = ()
    """Of a live model, what was done beside the plain calls that load it, in sentences."""
    reach: Reach = Reach()
    """Where it changes what it does, as its configuration says; empty for engines that don't read it."""
    segments: int = 1
    """Segments (token_type_ids) that the model tells apart, as its configuration says; 1 for engines that don't read it."""


class Rebased(Frozen):
    """What putting the adapter on another base did."""

    tensors: int
    """Tensors that were replaced."""


class Obstacle(Frozen):
    """Why something can't be done."""

    reason: str | None
    """As a clause; None where nothing is in the way."""


class Weighed(Frozen):
    """How the weights of a folder compare with those that it was made of."""

    reason: str | None
    """Why they are not the same, rounded, as a clause; None where they are, or were not compared."""
    compared: bool
    """Whether each of them was."""


class Encoding(Frozen):
    """Texts as token ids."""

    ids: list[list[int]]
    """The ids of each text, or of each pair."""
    types: list[list[int]] | None = None
    """Of pairs, the segment (0 or 1) of each token."""


class SpecialTokens(Frozen):
    """Token ids with a meaning of their own."""

    ids: list[int]
    """All of them, ascending."""
    mask: int | None
    """The one that stands for a hidden token; None where there is none."""


class TokenCount(Frozen):
    """A number of tokens."""

    tokens: int | None


class Text(Frozen):
    """The text of token ids."""

    text: str


class Rows(Frozen):
    """The shape (rows, vocabulary) of the outputs of a pass, before rows were chosen."""

    rows: int
    vocabulary: int


class Continuations(Frozen):
    """What was drawn."""

    tokens: list[list[int]]
    """Those after each prompt."""


class Decoding(Frozen):
    """What was decoded greedily."""

    tokens: list[int]
    """The tokens, without the prompt's."""
    cache_error: float | None = None
    """max |Δ| of the steps through the cache from a pass without one, in units of the outputs; None where that was not asked."""
    cache_errors: dict[str, float] | None = None
    """The same for each way in which the cache is used, where an engine has more than one."""
    cache_steps: list[float] | None = None
    """max |Δ| of each compared step, of the first way."""
    batch_error: float | None = None
    """max |Δ| between a row of a batch and the same text alone, where that is why the text was decoded alone."""
    batch_rows: int | None = None
    """Rows of that batch."""


class Difference(Frozen):
    """How far two outputs that should be the same are apart."""

    max_absolute: float | None
    """max |Δ| in units of the outputs; None where there is nothing to compare with."""


class Timing(Frozen):
    """How long one run took."""

    prefill_seconds: float
    """The first pass."""
    decode_seconds: float
    """The work after it."""
    tokens: int
    """The tokens of that work, those of all rows together."""


class Stats(Frozen):
    """What the worker took so far."""

    load_seconds: float
    """Time that loading took."""
    peak_rss_bytes: int
    """Largest resident set, interpreter and libraries included."""
    versions: dict[str, str]
    """Version of each library that is loaded, and of Python."""


class Transcript(Frozen):
    """What a tokenizer made of texts and ids; None for what it refuses."""

    ids: list[Ids | None]
    """The ids of each text."""
    pairs: list[Ids | None]
    """The ids of each pair."""
    types: list[Ids | None] = Field(default_factory=list)
    """The segment of each of these ids."""
    digests: list[str | None]
    """Stands for the ids of each text that was to be digested."""
    texts: list[str | None]
    """The text of each sequence, without special tokens."""
    whole: list[str | None] | None
    """The same with them; None where the reader knows no difference."""
    foreign: bool
    """It was read by another implementation than that of transformers, and pairs are left out; digests too, unless it is `alike`."""
    alike: bool = False
    """That implementation was kept only because it reads hard texts as transformers does."""


class FilesRead(Frozen):
    """What an engine's loader says of the files beside the weights; None for what it does not say."""

    tokenizer: bool
    """It was written as one tokenizer.json."""
    vocabulary: dict[str, int] | None
    """Token → id, of a tokenizer that can't be written so."""
    templates: dict[str, str] | None
    """Name → chat template; "default" is the usual one."""
    generation: Json | None
    """Settings of generation that are set."""
    defaults: Json | None
    """What transformers takes for those that are not."""
    runtime: Json | None
    """Settings that a runtime reads from a file of its own, by the names of `handlers.validate.files.runtime`."""
    words: bool = False
    """A vocabulary in a form of the runtime's own was written as `handlers.validate.files.words` reads it."""
    tables: str | None = None
    """What the tables of a runtime's own tokenizer say otherwise than the checkpoint's tokenizer.json, as a clause."""
    modules: dict[str, str] | None = None
    """Tensor of the files → name in the loaded model, of those that the loader renames."""


class Generated(Frozen):
    """What a runtime generated by itself, without sampling."""

    tokens: list[int] | None
    """Without the prompt's; None where the engine has no runtime that generates."""
    ignores: list[str] = Field(default_factory=list)
    """Settings of generation that the runtime does not know, by the names of transformers."""


class PicturePrompt(Frozen):
    """A prompt with a picture as the live model got it, for an engine that does not run the processor."""

    ids: list[int]
    mark: int
    """The token in it that stands for a part of the picture."""
    places: list[int]
    """Those in `ids` whose logits were kept."""
    picture: str
    """.npy file (H, W, 3) uint8."""


class Reading(Frozen):
    """What a language model made of a picture or a sound."""

    rows: int
    """Rows that were written; 0 for an engine that reads text alone."""
    tokens: list[int] = Field(default_factory=list)
    """What the model's own `generate` writes after the prompt, greedily."""
    kept: list[int] = Field(default_factory=list)
    """Which of the live model's rows these are; empty for all."""
    prompt: PicturePrompt | None = None
    """What it read, of the live model; None where that is no picture in a text."""


class Failure(Frozen):
    """Why a request could not be answered."""

    code: str
    """A fault's code."""
    cause: str
    """As a clause that can follow a colon."""
    remedy: str | None
    """What to do about it; None where the raiser knew nothing."""
    details: str | None
    """The traceback's end."""
    transient: bool = False
    """Whether the same may succeed later: memory or handles are short."""


A = TypeVar("A", bound=Frozen)


class Request(Frozen, Generic[A]):
    """One request, whose answer is an A."""

    command: ClassVar[str]
    """Its name on the pipe; `worker.Commands` has a method of that name."""
    reads_model: ClassVar[bool] = False
    """Whether answering it reads a whole model."""

    @property
    def work_tokens(self) -> int:
        """Tokens that the model has to run for it, as far as the request tells."""
        return 0

    @property
    def line(self) -> Json:
        """The JSON object that crosses the pipe."""
        return {"command": self.command, **self.model_dump()}

    @classmethod
    def answer_of(cls, value: Json) -> A:
        """Give the answer in a JSON object. Raises pydantic's ValidationError where it is none."""
        parametrized: Any = cls.__mro__[1]
        (model,) = parametrized.__pydantic_generic_metadata__["args"]
        answer: A = model.model_validate(value)
        return answer


class Load(Request[Loaded]):
    """Load the model."""

    command = "load"
    reads_model = True


class Rebase(Request[Rebased]):
    """Put the live adapter on another base."""

    command = "rebase"
    reads_model = True

    values: str
    """The base, as `merge.base` names it."""


class CanRebase(Request[Obstacle]):
    """Ask why the live adapter can be put on no other base than the one that it was loaded over."""

    command = "can_rebase"


class Merge(Request[Rebased]):
    """Merge the live adapter by PEFT itself; what is asked from then on is asked of the merged model, in fp32."""

    command = "merge"
    reads_model = True

    folder: str
    """The merged model's."""
    dtype: str | None = None
    """Torch's name of the 16 bits in which PEFT merges all; None for fp32."""


class Round(Request[Rebased]):
    """Round each weight of the live model, once merged, to the dtype in which a folder has it, and go on in fp32."""

    command = "round"
    reads_model = True

    folder: str
    """Of the merged model: its headers alone are read."""


class Encode(Request[Encoding]):
    """Encode texts by the tokenizer of the engine's own folder."""

    command = "encode"

    texts: list[str]
    firsts: list[str] | None = None
    """Of pairs, the texts that go before `texts`."""


class ListSpecialTokens(Request[SpecialTokens]):
    """Ask for the tokenizer's special tokens."""

    command = "special_tokens"


class CountInputTokens(Request[TokenCount]):
    """Ask how many tokens the model knows."""

    command = "input_tokens"


class Decode(Request[Text]):
    """Ask for the text of token ids."""

    command = "text"

    ids: Ids

    @property
    def work_tokens(self) -> int:
        return len(self.ids)


class Transcribe(Request[Transcript]):
    """Ask what the tokenizer of the engine's own folder makes of texts and ids."""

    command = "transcribe"

    texts: list[str]
    pairs: list[tuple[str, str]]
    digested: list[str]
    sequences: list[Ids]


class ReadFiles(Request[FilesRead]):
    """Ask what the engine's loader makes of the files beside the weights; a tokenizer.json is written into the folder `out`."""

    command = "read_files"

    out: str
    known: str = ""
    """A tokenizer.json that need not be written where the folder has the same."""


class Generate(Request[Generated]):
    """Let the runtime generate at most `tokens` tokens after `ids` by the settings of its own folder, without sampling."""

    command = "generate"

    ids: Ids
    tokens: int

    @property
    def work_tokens(self) -> int:
        return len(self.ids) + self.tokens


class Teacher(Request[Rows]):
    """Run one pass without a cache and write rows of its outputs, (len(keep), V) float32, into the .npy file `out`."""

    command = "teacher"

    ids: Ids
    keep: list[int]
    """Rows that are written."""
    out: str
    targets: Ids = Field(default_factory=list)
    """What was decoded after `ids`."""
    types: Ids | None = None
    bare: bool = False
    """Without the adapter."""

    @property
    def work_tokens(self) -> int:
        return len(self.ids) + len(self.targets)


class LongPass(Request[Rows]):
    """Read a long text in pieces, each on top of those before it through the cache, and write rows of its outputs into the .npy file `out`.

    These are (len(keep), V) float32; of an encoder-decoder, so many for each way in which its decoder can be run. An encoder reads all of
    it at once.
    """

    command = "long_pass"

    ids: Ids
    pieces: list[int]
    """Tokens of each step; of an encoder-decoder, of its targets, where all but the first are of one token."""
    keep: list[int]
    """Rows that are written, ascending."""
    out: str
    targets: Ids = Field(default_factory=list)
    """What an encoder-decoder is given as its output."""
    types: Ids | None = None

    @property
    def work_tokens(self) -> int:
        return len(self.ids) + len(self.targets)


class Greedy(Request[Decoding]):
    """Decode at most `tokens` tokens greedily through the cache."""

    command = "greedy"

    ids: Ids
    tokens: int
    least: int = 0
    """Tokens before which no end token ends it."""
    stop: bool = False
    """Whether end tokens end it."""
    verify: bool = False
    """Whether the cached steps are compared with a pass without a cache."""
    bare: bool = False
    """Without the adapter."""
    draft: Ids = Field(default_factory=list)
    """What it will probably say: a model that is asked `Ahead` runs several of these tokens in a step, and finds out whether it would."""
    along: Ids = Field(default_factory=list)
    """As many tokens as are asked for, of which a pass is asked too: a model that is asked `Ahead` may verify its cached steps along these,
    instead of along what it says."""

    @property
    def work_tokens(self) -> int:
        return len(self.ids) + self.tokens


class Continue(Request[Continuations]):
    """Let a language model go on after prompts: at most `tokens` tokens, each drawn from the most likely ones by their probabilities.

    All are the rows of a batch. Prompts of one length need no padding there.
    """

    command = "continue_texts"

    prompts: list[Ids]
    tokens: int
    seed: int
    """Of the first one; that of each other is one more."""

    @property
    def work_tokens(self) -> int:
        return sum(len(ids) + self.tokens for ids in self.prompts)


class Read(Request[Reading]):
    """Let a language model read a made-up picture or sound, prepared by the processor in its folder, with a question about it.

    The logits of evenly spaced positions of the prompt go into the .npy file `out`, (rows, V) float32.
    """

    command = "read"

    number: int
    """Of the picture or sound."""
    tokens: int
    """Most tokens that are written after it."""
    out: str
    bare: bool = False
    """Without the adapter."""
    prompt: PicturePrompt | None = None
    """What the live model read."""


class PaddedBatch(Frozen):
    """The rows of a batch of unlike lengths."""

    prompts: list[Ids]
    continuations: list[Ids]
    """What is decoded after each prompt: all of one length, or all empty."""
    types: list[Ids] | None = None


class Padding(Request[Difference]):
    """Compare a padded batch with its rows alone."""

    command = "padding"

    batch: PaddedBatch
    side: str = "left"
    """"left" or "right"."""

    @property
    def work_tokens(self) -> int:
        return sum(len(row) for row in (*self.batch.prompts, *self.batch.continuations))


class CompareWeights(Request[Weighed]):
    """Ask why the weights of the engine's folder are not those of the one that it was made of; asked before the model is loaded."""

    command = "compare_weights"
    reads_model = True

    source: str
    """The folder of the merged model."""


class CompareWrapper(Request[Difference]):
    """Compare a text's outputs of PEFT's wrapper of the live model with those of the model inside; None where there is no wrapper."""

    command = "wrapper"

    ids: Ids
    types: Ids

    @property
    def work_tokens(self) -> int:
        return len(self.ids)


class Time(Request[Timing]):
    """Time the first pass over a batch and the work after it, of which `tokens` sets how much each row gets."""

    command = "timed"

    rows: list[Ids]
    """Of one length."""
    tokens: int
    again: bool = False
    """The first pass need not be run if it was the last one that was timed; its seconds are given again."""

    @property
    def work_tokens(self) -> int:
        return sum(map(len, self.rows)) + len(self.rows) * self.tokens


class Going(Frozen):
    """How far the work on requests that were sent ahead has come."""

    passes: int
    """Times that the model's weights were read so far; 0 for a model that is held in memory."""
    more: bool
    """Whether there is more to do."""


class Ahead(Request[Going]):
    """Send requests that will be asked later, which a model can answer together: in passes layer by layer, or in one batch. Do one pass.

    Only `Greedy`, `Teacher`, `Padding` and `LongPass`, and only where `Loaded.together`. Without requests: do another pass.
    """

    command = "ahead"
    reads_model = True

    requests: list[Json] = Field(default_factory=list)
    """`Request.line` of each."""

    @property
    def work_tokens(self) -> int:
        return sum(request_of(line).work_tokens for line in self.requests)


class AskStats(Request[Stats]):
    """Ask what the worker took so far."""

    command = "stats"


REQUESTS: dict[str, type[Request[Any]]] = {
    request.command: request
    for request in (
        Load, Rebase, CanRebase, Merge, Round, Encode, ListSpecialTokens, CountInputTokens, Decode, Teacher, LongPass, Greedy, Continue,
        Padding,
        CompareWeights, CompareWrapper, Time, Ahead, AskStats, Transcribe, Read, ReadFiles, Generate,
    )
}  # fmt: skip
"""Command → its request."""


def request_of(line: Json) -> Request[Any]:
    """Give the request of JSON as `Request.line` made it. Raises KeyError for an unknown command, ValidationError for other fields."""
    fields = dict(line)
    return REQUESTS[fields.pop("command")].model_validate(fields)
