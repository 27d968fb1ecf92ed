"""The figures that a stage leaves for the stages after it and for the report, typed.

A stage writes them into its result file as `figures`, where they lie as a JSON object with these names. A name that is missing there was
not looked at; null was looked at and there is none. So writers dump a model with `exclude_unset`, and `figures_of` reads it back. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from daemon.contract.faults.text import small_print
from daemon.contract.jobs.messages import Status
from daemon.contract.jobs.terms import Judged
from daemon.contract.values import Json


class Figures(BaseModel):
    """What all figures share. Keys that another version wrote beside these are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @property
    def given(self) -> dict[str, Any]:
        """The values that were given, null among them, by name."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}

    def plus(self, **more: Any) -> Self:
        """The same with more values. Raises TypeError for a name that there is not, ValidationError for a value of another kind."""
        if unknown := more.keys() - type(self).model_fields.keys():
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        return type(self)(**{**self.given, **more})

    def written(self) -> dict[str, Any]:
        """The JSON object, with those names alone that were given a value, null among them."""
        return self.model_dump(mode="json", exclude_unset=True)

    def has(self, *names: str) -> bool:
        """Whether all these were given a value; null is one."""
        return self.model_fields_set.issuperset(names)


Model = TypeVar("Model", bound=Figures)


def figures_of(written: object, model: type[Model]) -> Model | None:
    """Figures as a stage or a report wrote them, by `model`.

    A value of another kind than the model asks for counts as missing, in nested figures too; None where the rest is none of this model.
    Raises nothing.
    """
    return _read(written, model)[0]


def unreadable(written: object, model: type[Figures]) -> tuple[str, ...]:
    """What `figures_of` leaves out, by name (`speed.onnx.prefill_seconds`), sorted; "" stands for all of them. Raises nothing."""
    figures, lost = _read(written, model)
    return tuple(sorted(lost)) or (("",) if figures is None else ())


def _read(written: object, model: type[Model]) -> tuple[Model | None, set[str]]:
    """The figures without what is of another kind, and the names of that."""
    if not isinstance(written, Mapping):
        return None, set()
    left: dict[str, Any] = {}
    lost: set[str] = set()
    for name in model.model_fields.keys() & written.keys():
        try:
            left |= from_json(json.dumps({name: written[name]}, default=str))
        except (TypeError, ValueError, RecursionError):  # texts that are no Unicode, objects in a circle or nested too deeply
            lost.add(name)
    while True:
        try:
            return model.model_validate_json(json.dumps(left), strict=True), lost
        except ValidationError as error:
            places = {_innermost(problem["loc"], left) for problem in error.errors(include_url=False)}
        if () in places:
            return None, lost
        for place in places:
            _drop(left, place)
            lost.add(".".join(place))


def _innermost(loc: tuple[int | str, ...], value: dict[str, Any]) -> tuple[str, ...]:
    """The longest beginning of a place that names entries of objects: a list that holds something odd is odd as a whole."""
    names: list[str] = []
    inside: Any = value
    for name in loc:
        if not isinstance(inside, dict) or name not in inside:
            break
        inside = inside[name]
        names.append(str(name))
    return tuple(names)


def _drop(value: dict[str, Any], place: tuple[str, ...]) -> None:
    for name in place[:-1]:
        value = value.get(name, {})
    value.pop(place[-1], None)


def stage_figures(facts: Judged, stage: str, model: type[Model]) -> Model | None:
    """The figures of a stage's result; None where it has none, or none of this model."""
    result = next((entry.result for entry in facts.stages if entry.name == stage), None)
    return figures_of(result.figures, model) if result else None


class MergeFigures(Figures):
    """What the stage `merge` did. Sizes are bytes, times seconds.

    The stage gives all of them. One that is missing, since another version wrote them or since it can't be read, has a default.
    """

    base_bytes: int | None = None
    """Bytes of the base's tensors (`.bin`: of its files). A full fine-tune is its own base."""
    parameters: int | None = None
    """Elements of all tensors of the output."""
    base_dtype: str | None = None
    """Dtype of most of the base's bytes, as torch names it."""
    output_dtype: str = ""
    """Dtype of most of the output's bytes, as torch names it; "" where it is not known."""
    base_digest: str | None = None
    """SHA-256 of the base, in hex; null when it was not computed."""
    method: str | None = None
    """PEFT's name of the method, or "full" for a full fine-tune."""
    changed_modules: int | None = None
    """Tensors that the adapter changed; where PEFT merged, tensors whose bytes differ from the base's."""
    changed_parameters: int | None = None
    """Elements of these tensors."""
    rank: int | None = None
    """Largest LoRA rank of a module; null for methods without ranks."""
    ranks: tuple[int, ...] = ()
    """All LoRA ranks that occur, ascending."""
    scale: float | None = None
    """Factor of B·A, where it is the same for all modules."""
    scales: tuple[float, ...] = ()
    """All factors that occur, ascending."""
    merge_seconds: float | None = None
    """Wall time of the whole stage, checks included."""
    resumed_files: int = 0
    """Weight files kept, verified, from an interrupted attempt."""
    resumed_bytes: int = 0
    """Bytes of these files."""
    weight_files: int = 0
    """Weight files in the output."""
    recast_tensors: int = 0
    """Tensors written in another dtype than they were stored in; 0 where PEFT merged."""
    held_share: float | None = None
    """Share of the adapter's changes that the written weights hold, Σ (W' − W) · Δ / Σ Δ² over samples of each tensor: in bf16 and fp16,
    rounding loses changes that are smaller than the distance between two numbers. Null where it was not measured."""
    task: str | None = None
    """What the merged model is for, as model hubs name it; null for an architecture that is not known."""


class Likeness(Figures):
    """How near a model's outputs are to a reference's, over all positions of all prompts."""

    agreement: float | None = None
    """Share of positions with the same choice; null for a task without one."""
    kl: float | None = None
    """Mean divergence from the reference, in nats a position; null for a task without one."""
    error_max: float | None = None
    """Largest |Δ| in standard deviations of the reference's outputs; null where that is infinite."""
    error_max_absolute: float | None = None
    """Largest |Δ| of an output."""
    error_mean_absolute: float | None = None
    """Mean |Δ| of an output."""
    logit_std: float | None = None
    """Standard deviation of the reference's outputs, the unit of `error_max`."""
    positions: int | None = None
    """Rows of outputs that were compared."""
    cosine_min: float | None = None
    """Smallest cosine of a vector with the reference's; of models that give vectors alone."""
    cosine_mean: float | None = None
    """Mean cosine of the vectors with the reference's; of models that give vectors alone."""
    rank_correlation: float | None = None
    """Spearman's correlation of the prompts' similarities to each other under both models; of models that give vectors alone."""
    texts: int | None = None
    """Prompts that the intervals were drawn from; pieces of one prompt count as one."""
    agreement_interval: tuple[float, float] | None = None
    """95 % interval of `agreement`, by bootstrap over prompts, as all intervals are that do not say otherwise; null from fewer than two
    prompts."""
    kl_interval: tuple[float, float] | None = None
    """95 % interval of `kl`."""
    perplexity: float | None = None
    """Of the prompts' tokens, each given those before it; of language models alone."""
    perplexity_ratio: float | None = None
    """That over the reference's perplexity of the same tokens."""
    perplexity_ratio_interval: tuple[float, float] | None = None
    """95 % interval of `perplexity_ratio`, paired over the prompts; null where there is none."""
    perplexity_tokens: int | None = None
    """Tokens that these perplexities are of."""
    greedy_same: tuple[int, ...] | None = None
    """Tokens that greedy decoding gives as the reference does before the first other one, for each prompt that was decoded."""
    greedy_same_median: float | None = None
    """Median of `greedy_same`."""
    greedy_tokens_median: float | None = None
    """Median of the tokens that the reference decoded for these prompts: the most that `greedy_same_median` can be."""
    by_text: dict[str, tuple[tuple[float, float], ...]] | None = None
    """Figure → [sum, weight] of each prompt, in their order, of which its mean is made: `perplexity` in nats and tokens, `kl` in nats and
    positions, `error` (of a task without a divergence) as mean |Δ| and positions. Missing but for an artifact's own figures."""


class Scores(Figures):
    """What a model says against what the data says that it should say. A name that is missing does not fit the task."""

    texts: int | None = None
    """Texts with a label or a reference."""
    accuracy: float | None = None
    """Share of the texts whose label is right."""
    macro_f1: float | None = None
    """F1 of each class, averaged over those that occur."""
    exact_match: float | None = None
    """Share of the answers that are the reference, apart from spaces."""
    chrf: float | None = None
    """chrF2 of all answers by sacrebleu, 0 to 100; null where sacrebleu is not installed."""
    bleu: float | None = None
    """BLEU of all answers by sacrebleu, 0 to 100; null where sacrebleu is not installed."""
    by_text: dict[str, tuple[tuple[float, float], ...]] | None = None
    """Score → [value, weight] of each text, in their order, 1.0 for right; the weight is 0 where the text was not scored. `chrf` is that of
    each answer, whose mean is not the corpus' score."""


class LiveFigures(Figures):
    """The live model, base + adapter, that everything is compared with."""

    dtype: str | None = None
    """What it computed in, as torch names it."""
    method: str | None = None
    """How it was put together, in words."""
    peak_rss_bytes: int | None = None
    """Largest resident set of its process, in bytes."""
    load_seconds: float | None = None
    """Time that loading took, in seconds."""
    adapter: Likeness | None = None
    """The adapter's effect: the bare base beside base + adapter; null for a full fine-tune."""
    no_base: str | None = None
    """Why there is no base to compare with; null where there is one."""
    perplexity: float | None = None
    """Its perplexity of the prompts' tokens; null for what is no language model."""
    task: str | None = None
    """What the model is for, as model hubs name it; missing for a causal language model."""
    scores: Scores | None = None
    """Its scores against the data's labels or references; missing where the data has none."""
    base_scores: Scores | None = None
    """The same of the base without the adapter; missing for a full fine-tune too."""
    way: str | None = None
    """"layer by layer" for a model that was too large for the memory; missing for one that was held whole."""


class Processor(Figures):
    """A processor, as far as results can depend on it."""

    architecture: str | None = None
    """As the kernel names it, for example `x86_64`."""
    vendor: str | None = None
    """As the processor names its maker; "" where that is not known."""
    model: str | None = None
    """Its name; null where that is not known."""
    features: tuple[str, ...] = ()
    """Instruction sets by which libraries choose their kernels, in the kernel's words."""


class Checking(Figures):
    """What each stage that runs models says of the machine that it ran on."""

    checked_on: Processor | None = None
    """The processor."""


class BasesFigures(Figures):
    """Which base the adapter fits best on the prompts' own text. `nll`, `error` and `kl` are in nats a token, by the base's name."""

    chosen: str
    """The base that the adapter was merged into, as `merge.base` names it."""
    skipped: str | None = None
    """Why nothing was compared; beside `chosen` alone."""
    best: str | None = None
    """The base with the smallest `nll`."""
    tokens: int | None = None
    """Tokens that were scored."""
    nll: dict[str, float] | None = None
    """Mean negative log-likelihood of these tokens."""
    error: dict[str, float | None] | None = None
    """Standard error of each other base's difference from the chosen one; null for a single token."""
    kl: dict[str, float | None] | None = None
    """Divergence KL(chosen ‖ other)."""


class LiveSample(Figures):
    """One of the first prompts with what the live model says, and what its base says without the adapter."""

    prompt: str | None = None
    """The prompt."""
    base: str | None = None
    """What the base says; null for a full fine-tune, for a base without the head that the adapter brings, and where there is no text."""
    text: str | None = None
    """What the live model says; null for a task that gives no text."""


class TextsFigures(Figures):
    """What the texts for one purpose, comparison or calibration, are like."""

    sources: dict[str, int] | None = None
    """Where they come from → how many."""
    texts: int | None = None
    """Texts that were used."""
    tokens: int | None = None
    """Tokens of them all, as far as they were used."""
    shortest: int | None = None
    """Tokens of the shortest text."""
    median: int | None = None
    """Median of the lengths, in tokens."""
    p95: int | None = None
    """Length that 95 % of the texts do not exceed, in tokens."""
    longest: int | None = None
    """Tokens of the longest text."""
    cut: int | None = None
    """Texts of which only the beginning was used."""
    scripts: dict[str, float] | None = None
    """Script → its share of all letters."""
    unknown_share: float | None = None
    """Share of the tokens that stand for what the tokenizer does not know; null where it has no such token."""
    byte_share: float | None = None
    """Share of the tokens that are single bytes of characters without a token; null where the tokenizer has none of these."""
    different_tokens: int | None = None
    """Different tokens among them."""
    vocabulary_share: float | None = None
    """`different_tokens` over the model's vocabulary; null where its size is not known."""
    digest: str | None = None
    """SHA-256, in hex, over the texts in their order."""


class ReferenceFigures(Checking):
    """What the stage `reference` found."""

    reference: LiveFigures | None = None
    """The live model."""
    prompts: tuple[str, ...] = ()
    """The prompts' texts, in the order in which they were asked."""
    bases: BasesFigures | None = None
    """Which base the adapter fits best on the prompts; missing where that was not asked."""
    samples: tuple[LiveSample, ...] = ()
    """The first prompts, for people to look at; none where the prompts are no text."""
    texts: TextsFigures | None = None
    """What the prompts are like; missing where they are no text."""
    answers: Json | None = None
    """By which a server elsewhere is known to answer as the live model; missing for what is no language model."""


class SampleFigures(Figures):
    """One of the first prompts with two answers, for people to look at."""

    prompt: str | None = None
    """The prompt."""
    question: str | None = None
    """The last question of a conversation, as it was asked; null for other prompts."""
    reference: str | None = None
    """What the live model says; null for a task that gives no text."""
    text: str | None = None
    """What the artifact says; null for a task that gives no text, or where its tokenizer can't be used."""


class WorstSample(Figures):
    """The position at which an artifact is farthest from the live model, in the prompt that is worst on average."""

    number: int
    """The prompt, counted from 1."""
    kl: float | None = None
    """Divergence over all positions of that prompt, in nats a position."""
    position: int
    """Place of the worst row, counted from 0: in prompt and continuation, in the output, or in the text, as the task has it."""
    position_kl: float | None = None
    """Divergence there, in nats."""
    prompt: str
    """The prompt."""
    before: str | None = None
    """The text before that position; null for a task that gives one answer to a text, or without a tokenizer."""
    live: str | None = None
    """What the live model chooses there, as text."""
    artifact: str | None = None
    """What the artifact chooses there, as text; equal where it is only less certain."""


class Percentiles(Figures):
    """How a figure of single positions is distributed, by llama.cpp's definitions. A value that they are too few for is null."""

    mean: float
    """Their mean."""
    standard_error: float | None = None
    """What llama.cpp prints behind "±": the standard error of the mean if positions were independent, which those of one text are not;
    null from ten positions or fewer."""
    maximum: float
    """The largest."""
    minimum: float
    """The smallest."""
    percentiles: dict[str, float | None]
    """Percent ("99.9", "50") → value, interpolated between the two nearest; null where not even one position is expected beyond it."""


class Flips(Figures):
    """Where an artifact chooses otherwise than the live model, and which of the two is right, where that is known."""

    positions: int
    """Positions of this kind."""
    flips: int
    """Of these, with another choice."""
    known: int
    """Positions at which the right choice is known: the text's next token, or the data's label."""
    lost: int | None = None
    """Of these, where the live model alone is right; null where no right choice is known, as for the two below."""
    gained: int | None = None
    """Where the artifact alone is right."""
    mcnemar_p: float | None = None
    """McNemar's exact test of these two: how often chance alone makes them as different, if positions were independent."""


class ConfidenceBucket(Flips):
    """The positions at which the probability of the live model's choice is in a range."""

    low: float
    """Begin of the range, in it."""
    high: float
    """End of the range, not in it unless it is 1."""
    kld_mean: float | None = None
    """Mean divergence at these positions, in nats; null where there is none."""
    kld_median: float | None = None
    """Its median."""


class Statistics(Figures):
    """How the differences of single positions are distributed, with the names of llama.cpp's `perplexity --kl-divergence`. A name that is
    missing does not fit the task; null are figures for which there are too few positions."""

    kld: Percentiles | None = None
    """KL(live ‖ artifact) of a position, in nats."""
    kld_reversed: Percentiles | None = None
    """KL(artifact ‖ live)."""
    kld_worst: float | None = None
    """Mean of the largest 1 % of `kld`; null from fewer than 100 positions."""
    delta_p: Percentiles | None = None
    """Δp: probability of the text's next token under the artifact minus that under the live model, from -1 to 1."""
    delta_p_rms: float | None = None
    """Root mean square of Δp."""
    delta_p_rms_standard_error: float | None = None
    """What llama.cpp prints behind "±" of it."""
    ln_ppl_ratio: float | None = None
    """ln(PPL(artifact)/PPL(live)), the mean difference of the negative log-likelihoods of the text's next tokens, in nats."""
    ln_ppl_ratio_standard_error: float | None = None
    """What llama.cpp prints behind "±" of it."""
    ln_ppl_ratio_interval: tuple[float, float] | None = None
    """95 % interval of `ln_ppl_ratio`, paired over the prompts; null where there is none."""
    ppl_correlation: float | None = None
    """Pearson's correlation of these negative log-likelihoods under both models; null where one of them is constant."""
    same_top_p: float | None = None
    """Share of positions with the same most likely choice: `agreement`."""
    same_top_p_standard_error: float | None = None
    """What llama.cpp prints behind "±" of it."""
    top_k_agreement: tuple[float, ...] | None = None
    """Share of positions whose K most likely choices are the same in the same order, for K = 1, 2, …"""
    flips: Flips | None = None
    """At all positions; of several labels at once, a text with another label is a flip."""
    confident_flips: Flips | None = None
    """At those where the probability of the live model's choice is at least 0.75."""
    by_confidence: tuple[ConfidenceBucket, ...] | None = None
    """The positions by the probability of the live model's choice."""
    cosine: Percentiles | None = None
    """Cosine of a vector with the live model's."""
    error: Percentiles | None = None
    """|Δ| of a text's number, in its own unit; of more than one number, the largest."""
    correlation: float | None = None
    """Pearson's correlation of the texts' numbers under both models; null for more than one number a text, or where one is constant."""
    rank_correlation: float | None = None
    """Spearman's correlation of the same."""


class ForeignFigures(Figures):
    """What another program makes of the same artifact."""

    engine: str
    """Its name, with the class that it chose."""
    failed: str | None = None
    """Why it can't read the artifact; missing where it can."""
    greedy_identical: bool | None = None
    """Whether it decodes the tokens that our engine decodes; null where nothing is decoded."""
    error_max_absolute: float | None = None
    """Largest |Δ| between its outputs and those of our engine; null where that is infinite."""
    adjusted: list[str] | None = None
    """What of the program had to be put right first."""
    differs: bool | None = None
    """Whether that error is more than rounding."""


class IntegerProducts(Figures):
    """The products of integers in an artifact's graphs, and whether any kernel may add them in too few bits."""

    products: int
    """Products there are."""
    kinds: dict[str, int]
    """How many there are of each pair of types, written `activations x weights`."""
    largest_pair_sum: int | None
    """Largest |sum| of two products that a kernel may add in 16 bits; null where it adds none, or where the weights are not constant."""
    pair_sum_limit: int
    """What 16 bits hold."""
    overflowing_products: int
    """Products in which such a sum may be larger."""
    unknown_products: int
    """Products of which that could not be found out."""


class LongFigures(Likeness):
    """How near an artifact is to the live model on one long text, which it reads in pieces and, at the end, a token at a time."""

    tokens: int | None = None
    """Tokens of the text, of an encoder-decoder of its source; null where no long text was read."""
    why: str | None = None
    """Why there is none, or why it is shorter than it should be, as a clause; null where nothing is missing."""
    window: int | None = None
    """Positions that the model's local attention sees; null where it has none."""
    original: int | None = None
    """Positions behind which its rotary positions are scaled; null where they are not."""
    growth: float | None = None
    """Mean |Δ| in the last third of the compared positions over that in the first third; null where that is not known."""
    step_position: int | None = None
    """Position at which the course of the mean |Δ| (from the merged model, where that was run) has its clearest step; missing where too
    few were compared."""
    step_ratio: float | None = None
    """How clear it is: the smallest quarter of the errors from there on over the largest tenth of those before."""
    step_behind: float | None = None
    """Median of the errors from there on, in standard deviations of the live model's outputs."""
    merged_error_max_absolute: float | None = None
    """Largest |Δ| from the merged model in PyTorch; missing where that was not run."""
    ties: int | None = None
    """Positions with the largest errors that are left out of the two figures below, as the last bit of a weight in 16 bits may decide what
    they say; 0 where the merge is in fp32, missing where no outputs were compared."""
    error_without_ties: float | None = None
    """`error_max` without these; null where that is infinite."""
    kl_without_ties: float | None = None
    """`kl` without these; null for a task without one."""


class Decision(Figures):
    """Whether a limit is kept, by bounds that hold for all texts like those that were read."""

    limit: str
    """`kl`, `agreement`, `perplexity`, `error`, or `fine_tuning`."""
    value: float | None = None
    """The figure over all texts read; null where it is no number."""
    allowed: float
    """The limit."""
    low: float | None = None
    """Lower bound of the figure; null where there are too few texts for one. Of `error` there is none."""
    high: float | None = None
    """Upper bound. Of `error`, of the share of positions at which an error can be beyond the limit."""
    outcome: Literal["passed", "failed", "undecided"] = "undecided"
    """What the bounds say; of `error`, what the positions that were read say."""
    texts: int = 0
    """Texts read until then; pieces of one count as one."""
    looks: int = 1
    """How often was looked."""


class CheckFigures(Likeness):
    """What a check measured of an artifact, or the stage `merged` of the merged model. A name that is missing was not measured."""

    task: str | None = None
    """What the model is for, as model hubs name it; missing for a causal language model."""
    greedy_identical: int | None = None
    """Prompts whose greedy tokens are all the live model's; null where nothing is decoded."""
    greedy_prompts: int | None = None
    """Prompts that were decoded; null where nothing is decoded."""
    cache_error_max_absolute: float | None = None
    """Largest |Δ| between outputs decoded through the cache and those of one pass; null where nothing is decoded."""
    cache_errors: dict[str, float] | None = None
    """The same for each way in which the cache is used, where there is more than one."""
    padding_error_max_absolute: float | None = None
    """Largest |Δ| between a padded batch and its rows alone."""
    padding_errors: dict[str, float] | None = None
    """The same for each side that is padded; missing for a causal language model, which is padded on the left."""
    merged_error_max_absolute: float | None = None
    """Largest |Δ| from the merged model in PyTorch; null where that could not be run."""
    merge_error: float | None = None
    """Largest |Δ| from what the live model answers once PEFT has merged it and each weight was rounded once to the dtype in which it is
    stored, in standard deviations, but for 2 % of the positions; null where it is infinite. Of the merged model alone; missing where PEFT
    can't tell."""
    media: Likeness | None = None
    """How near it is to the live model where it reads made-up pictures or sounds with a question; missing for models of text alone, and for
    artifacts that are the language part alone."""
    rounded: Likeness | None = None
    """How near it is to the live model whose weights PEFT merged and that were rounded to the merge's 16 bits, `error_max` without the 2 %
    of the positions with the largest errors; missing but for mixtures of experts, where that rounding decides which expert a token
    gets."""
    twin_error: float | None = None
    """Largest |Δ| between its graph, computed in fp32, and the merged model in PyTorch with the graph's own weights, in standard
    deviations of the outputs: whether the graph is that model, however its weights were rounded. Null where it is infinite; missing where
    nobody compared."""
    twin_padding_error: float | None = None
    """Largest |Δ| of its graph, computed in fp32, between rows of a padded batch and the same texts alone, in the same unit: whether it
    honours the attention mask, however padding changes what is rounded. Null where it is infinite; missing where rows don't change each
    other's rounding, or nobody compared."""
    rounding_error: float | None = None
    """What rounding activations changes in its outputs: root mean square of the difference from the graph computed in fp32, over that of
    the outputs."""
    rounding_slope: float | None = None
    """Slope of the regression of its outputs on those of the graph computed in fp32: 1 where rounding changes nothing systematically."""
    rounding_share: float | None = None
    """What rounding the merged weights to 16 bits changes in the outputs, over what the adapter changes in them: mean |Δ| of the merged
    model from the live one, over mean |Δ| of the base without the adapter from it. Of the merged model alone; missing where its weights are
    not of 16 bits, or where there is no adapter."""
    fine_tuning: float | None = None
    """How much of what the fine-tuning changed in the base is in the artifact, at the positions that it changed most: 1 all, 0 nothing.
    Missing where there is no base, or where it does not differ from the live model."""
    fine_tuning_interval: tuple[float, float] | None = None
    """95 % interval of `fine_tuning`; null from fewer than two prompts."""
    distance_from_live: float | None = None
    """Mean divergence from the live model at these positions, in nats; of numbers the mean square, of vectors 1 minus the cosine."""
    distance_from_base: float | None = None
    """The same from the base without the adapter."""
    growth: float | None = None
    """Mean |Δ| from the live model in the last third of a prompt's positions over that in the first third, over all prompts; missing for
    tasks and prompts without enough positions."""
    growth_interval: tuple[float, float] | None = None
    """95 % interval of `growth`."""
    cache_growth: float | None = None
    """The same for the steps of decoding through the cache, compared with one pass."""
    long: LongFigures | None = None
    """On a long text; missing where none was looked at."""
    worst: WorstSample | None = None
    """Where the artifact is farthest from the live model; missing for a task without a choice."""
    statistics: Statistics | None = None
    """How its differences from the live model are distributed; missing in figures of ckptd 1.0."""
    decisions: tuple[Decision, ...] = ()
    """Of each limit whether it is kept, over these texts and those that were read on; all other figures are of the first texts alone."""
    notes: tuple[str, ...] = ()
    """What must be known of the figures although it decides no verdict, in sentences."""
    sample: SampleFigures | None = None
    """The first prompt with both answers; null where the prompts are no text."""
    samples: tuple[SampleFigures, ...] = ()
    """The first prompts with both answers, `sample` among them; none where the prompts are no text."""
    scores: Scores | None = None
    """Its scores against the data's labels or references; missing where the data has none."""
    completion: Likeness | None = None
    """How near it is to the live model at those tokens of the texts alone that the data says the model should say."""
    load_seconds: float | None = None
    """Time that loading took, in seconds."""
    peak_rss_bytes: int | None = None
    """Largest resident set of the artifact's process, in bytes."""
    foreign: ForeignFigures | None = None
    """What another program makes of it; missing where none was asked."""
    way: str | None = None
    """"layer by layer" for a model that was too large for the memory; missing for one that was held whole."""
    needs: str | None = None
    """Which processors give these answers, in words; missing where nobody looked."""
    integer_products: IntegerProducts | None = None
    """The products of integers in its graphs; missing where it has none."""
    log_end: Annotated[str, AfterValidator(small_print)] | None = None
    """The last lines of an engine that could not run it; beside nothing else."""


class Speed(Figures):
    """How fast an artifact is."""

    tokens_per_second: float | None = None
    """Tokens decoded (or, by an encoder, read) a second; null where speed is not measured."""
    prefill_seconds: float | None = None
    """Time to the first token, in seconds; null where speed is not measured."""
    pytorch_tokens_per_second: float | None = None
    """The same of the merged model in PyTorch, in the same turn; null where that could not be run."""
    speed_over_pytorch: float | None = None
    """The first divided by the second: the median over the turns; null where there is nothing to compare with."""
    speed_over_pytorch_range: tuple[float, float] | None = None
    """The smallest and the largest of the turns; on a busy machine they are far apart."""


class SpeedFigures(Figures):
    """What the stage `speed` found."""

    speed: dict[str, Speed]
    """Variant → its speed; without those that could not be run."""
    measured_on: Processor | None = None
    """The processor of the machine that measured."""


class TaskFigures(Figures):
    """What one of `[[validate.tasks]]` gave of a model, and how that stands to the live model's."""

    metric: str | None = None
    """What an item's score is."""
    better: Literal["higher", "lower"] | None = None
    """Which values are better."""
    value: float | None = None
    """Mean of the scores, by the items' weights; missing where the task could not be run."""
    items: int | None = None
    """Items that were scored."""
    digest: str | None = None
    """SHA-256 over the items' ids, in hex: figures of two exports are of the same items where it is equal."""
    metrics: dict[str, float] | None = None
    """Further figures as the task gave them, which nothing compares."""
    by_text: dict[str, tuple[tuple[float, float], ...]] | None = None
    """The task's name → (sum, weight) of each item, in the order of their ids; missing for the live model."""
    live: float | None = None
    """The live model's value; missing where that is not known."""
    difference: float | None = None
    """The value minus the live model's."""
    interval: tuple[float, float] | None = None
    """95 % interval of `difference`, paired over the items; null where there is none."""
    drop: float | None = None
    """How much worse it may be; missing where no limit is set."""
    undecided: bool | None = None
    """Whether the interval holds that limit, so that the figure alone decided."""
    failed: str | None = None
    """Why the task could not be run, or not be compared, as a clause; missing where it could."""


class EvaluationFigures(Figures):
    """What a stage `evaluate-…` found."""

    tasks: dict[str, TaskFigures] = {}
    """Task → its figures, in the order of the configuration."""


class ArtifactFigures(Speed, CheckFigures, EvaluationFigures):
    """All that is known of an artifact in the end: what its check measured and how fast it is. report.json has these in one object."""


class ReportFigures(Figures):
    """What the stage `report` said."""

    status: Status
    """How the export ended."""
    verdict: str = ""
    """The same in one line for people."""
    artifacts: dict[str, str] = {}
    """Variant → its verdict."""
