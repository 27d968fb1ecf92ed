"""Encoder-decoders of text (MarianMT, T5, BART and their relatives) as an encoder and decoders that keep their cache.

Chosen by `handlers.families.choice.choose`. Written are, with their roles in graphs.json:

* `encoder`: input_ids, attention_mask → last_hidden_state.
* `decoder`, the first step: encoder_attention_mask, input_ids, encoder_hidden_states → logits and the whole cache,
  present.{i}.decoder.key|value and present.{i}.encoder.key|value.
* `decoder_with_past`, every later step: encoder_attention_mask, input_ids, past_key_values.{i}.decoder|encoder.key|value → the same.
* `decoder_merged`, all steps in one graph: the inputs of both and the boolean `use_cache_branch` of shape (1). False ignores the
  past, whatever its length (0 or 1 as runtimes feed it; batch, heads and size must be right); true ignores encoder_hidden_states, whose
  batch and width must still be right.

Every decoder gives present.{i}.encoder.key|value as (batch, heads, encoder_sequence, size) in every step, so that whoever drives it
renames present to past_key_values after each call and needs no exception. A step may have any number of tokens; positions follow from
the length of the cache, and there is no mask of the decoder's tokens: rows start together, and what follows a row's end is thrown away.
Decoding starts with `decoder_start_token_id` and obeys the rest of generation_config.json (forced and forbidden tokens).

So one runs a folder: `encoder` once; then either `decoder` with the start token and `decoder_with_past` with each further one, or
`decoder_merged` alone, with false and then true. A folder without a cache holds `encoder` and `decoder`, whose only output is logits
and which takes all tokens so far in each step. All graphs share one file of weights, where each weight lies once.

Only models whose encoder reads token ids are taken, and only caches that are keys and values for each layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from handlers.families.base import Family, Form, Graphs, NotApplicableError, Part, Tracing, architecture, unsupported
from handlers.families.seq2seq.check import STEPS, Seq2SeqCase, Seq2SeqReference, verify
from handlers.families.seq2seq.decoder_merge import merged
from handlers.families.seq2seq.ports import DECODER, DECODER_MERGED, DECODER_WITH_PAST, ENCODER, FILES, cache_names, ports
from handlers.graphs import graph_file
from handlers.graphs.comparison import Opener, open_graph
from handlers.graphs.signature import Signature
from handlers.models.tasks import Task

_SAMPLES = ((9, ((0, 0), (0, 4), (3, 0))), (1, ((0, 0),)))
"""Batches of the check: source tokens, and of each row how many are padding on the left and on the right."""


def flat(cache: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of an EncoderDecoderCache in the order of the graphs."""
    layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
    return tuple(tensor for own, cross in layers for tensor in (own.keys, own.values, cross.keys, cross.values))


class EncoderPart(torch.nn.Module):
    """input_ids, attention_mask → states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        """Tensors in the order of the signature's inputs."""
        ids, mask = tensors
        states: torch.Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return states


class FirstStep(torch.nn.Module):
    """encoder_attention_mask, input_ids, encoder_hidden_states → logits and, with a cache, what it holds."""

    def __init__(self, model: Any, *, cache: bool) -> None:
        super().__init__()
        self.model, self.cache = model, cache

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors in the order of the signature's inputs."""
        mask, ids, states = tensors
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache()) if self.cache else None
        output = _decode(self.model, mask, ids, states, cache)
        return (output.logits, *(flat(output.past_key_values) if self.cache else ()))


class LaterStep(torch.nn.Module):
    """encoder_attention_mask, input_ids and a cache → logits and the cache, grown."""

    def __init__(self, model: Any, width: int) -> None:
        super().__init__()
        self.model, self.width = model, width

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors in the order of the signature's inputs."""
        mask, ids, *past = tensors
        own, cross = (DynamicCache(list(zip(past[start::4], past[start + 1 :: 4], strict=True))) for start in (0, 2))
        cache = EncoderDecoderCache(own, cross)
        cache.is_updated = dict.fromkeys(range(len(past) // 4), True)
        # Their length is read and nothing else, since the cache holds what would be made of them.
        states = torch.zeros(*mask.shape, self.width)
        output = _decode(self.model, mask, ids, states, cache)
        return (output.logits, *flat(output.past_key_values))


def _decode(model: Any, mask: torch.Tensor, ids: torch.Tensor, states: torch.Tensor, cache: EncoderDecoderCache | None) -> Any:
    return model(
        decoder_input_ids=ids, encoder_outputs=BaseModelOutput(last_hidden_state=states), attention_mask=mask, past_key_values=cache,
        use_cache=cache is not None,
    )  # fmt: skip


def _sizes(model: Any) -> tuple[int, int]:
    """Tokens of the encoder's vocabulary and of the decoder's, which differ where two languages do."""
    encoder, decoder = (int(half.get_input_embeddings().num_embeddings) for half in (model.get_encoder(), model.get_decoder()))
    return encoder, decoder


def _source(generator: torch.Generator, vocabulary: int, length: int, padding: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    ids = torch.randint(0, vocabulary, (len(padding), length), generator=generator)
    mask = torch.ones_like(ids)
    for row, (left, right) in enumerate(padding):
        mask[row, :left] = 0
        mask[row, length - right :] = 0
    return ids, mask


def _answer(model: Any, ids: torch.Tensor, mask: torch.Tensor, tokens: torch.Tensor, folder: Path, cache: bool) -> Seq2SeqCase:
    with torch.inference_mode():
        output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=tokens, use_cache=cache)
    held: dict[str, Any] = {}
    if cache:
        tensors = _checked(output.past_key_values, folder)
        held = {name: tensor.numpy() for name, tensor in zip(cache_names("present", len(tensors) // 4), tensors, strict=True)}
    states, logits = output.encoder_last_hidden_state.float().numpy(), output.logits.float().numpy()
    return Seq2SeqCase(ids.numpy(), mask.numpy(), tokens.numpy(), states, logits, held)


def _checked(cache: Any, folder: Path) -> tuple[torch.Tensor, ...]:
    halves = (getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache"))
    if not isinstance(cache, EncoderDecoderCache) or not all(isinstance(half, DynamicCache) for half in halves):
        raise unsupported(folder, "the model has a cache of its own kind, not keys and values of decoder and encoder")
    tensors = flat(cache)
    if not all(isinstance(tensor, torch.Tensor) and tensor.ndim == 4 for tensor in tensors):
        raise unsupported(folder, "its cache does not hold keys and values of each layer")
    return tensors


class Seq2Seq(Family):
    """See `handlers.families.base.Family`."""

    name = "seq2seq"

    def __init__(self, task: Task, *, cache: bool = True, merges: bool = True) -> None:
        super().__init__(task)
        self.cache, self.merges = cache, merges

    def shaped(self, form: Form) -> Seq2Seq:
        """The family that makes graphs of `form`; NotApplicableError for fixed axes, which would serve one length of source only."""
        if form.axes != "all":
            raise NotApplicableError("an encoder-decoder needs a dynamic batch and dynamic lengths")
        return Seq2Seq(self.task, cache=form.cache, merges=self.merges)

    def load(self, folder: Path, tracing: Tracing) -> Any:
        """See `Family.load`; Permanent for a model whose encoder reads something else than tokens."""
        try:
            model = super().load(folder, tracing)
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
            raise unsupported(folder, f"{architecture(folder)} is not an encoder-decoder of text for transformers") from None
        reads = getattr(model.get_encoder(), "main_input_name", "input_ids")
        if reads != "input_ids" or model.main_input_name != "input_ids":
            raise unsupported(folder, f"its encoder reads {model.main_input_name}, not the tokens of a text")
        return model

    def refer(self, model: Any, folder: Path) -> Seq2SeqReference:
        """See `Family.refer`; Permanent for a model that keeps no standard cache."""
        generator = torch.Generator().manual_seed(7)
        source, target = _sizes(model)
        cases = []
        for length, padding in _SAMPLES:
            ids, mask = _source(generator, source, length, padding)
            tokens = torch.randint(0, target, (len(padding), sum(STEPS)), generator=generator)
            cases.append(_answer(model, ids, mask, tokens, folder, self.cache))
        return Seq2SeqReference(tuple(cases), len(cases[0].cache) // 4, self.merges)

    def parts(self, model: Any, reference: Seq2SeqReference) -> Sequence[Part]:
        batch, length, sequence, past = 2, 7, 3, 5
        generator = torch.Generator().manual_seed(11)
        source, target = _sizes(model)
        ids, mask = _source(generator, source, length, ((2, 0), (0, 1)))
        tokens = torch.randint(0, target, (batch, sequence), generator=generator)
        width = reference.cases[0].states.shape[2]
        states = torch.randn(batch, length, width, generator=generator)
        modules: dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]] = {
            ENCODER: (EncoderPart(model), (ids, mask)),
            DECODER: (FirstStep(model, cache=self.cache), (mask, tokens, states)),
        }
        if self.cache:
            cache = [
                torch.randn(batch, array.shape[1], length if ".encoder." in name else past, array.shape[3], generator=generator)
                for name, array in reference.cases[0].cache.items()
            ]
            modules[DECODER_WITH_PAST] = (LaterStep(model, width), (mask, tokens, *cache))
        return [
            Part(role, FILES[role], ports(role, reference.layers), module.eval(), example) for role, (module, example) in modules.items()
        ]

    def finish(self, graphs: Graphs) -> Graphs:
        """See `Family.finish`; adds the merged decoder. Weights are turned here, so that it shares them with those it is made of."""
        if DECODER_WITH_PAST not in graphs:
            return graphs
        layers = len([value for value in graphs[DECODER_WITH_PAST].graph.inputs if str(value.name).startswith("past_key_values.")]) // 4
        for role in (DECODER, DECODER_WITH_PAST):
            graph_file.fold_transposed_weights(graphs[role])
            graph_file.name_axes(graphs[role], ports(role, layers))
        return {**graphs, DECODER_MERGED: merged(graphs[DECODER], graphs[DECODER_WITH_PAST], layers)}

    def signatures(self, reference: Seq2SeqReference) -> Mapping[str, tuple[str, Signature]]:
        return {role: (FILES[role], ports(role, reference.layers)) for role in reference.roles}

    def verify(self, folder: Path, reference: Seq2SeqReference, *, threads: int = 1, opened: Opener = open_graph) -> float:
        return verify(folder, reference, threads, opened)
