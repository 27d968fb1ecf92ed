"""Classifiers, translators and encoders of sentences."""

from __future__ import annotations

from pathlib import Path

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import config, like, weights


def _headless(folder: Path) -> None:
    weights(lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("classifier")])(folder)
    config(id2label=None, label2id=None)(folder)


EXHIBITS = {
    "cache_of_a_translator": Exhibit(
        bug="huggingface/transformers#37414",
        name="a cache that is one too short",
        happened="The place where a cache begins was wrong by one.",
        mutant="each cache that the decoder gives back has its second token in the place of its first",
        hall="translator",
        variant="onnx",
        make=like("sabotage", "cache overwritten by one"),
        check="limit: cache",
        words=r"cached decoding .* the cache is broken",
    ),
    "classifier_lost": Exhibit(
        bug="unslothai/unsloth-zoo#1087",
        name="a classifier's head that is lost",
        happened="Merging to 16 bits wrote the base's tensors alone: the trained head and its labels were gone, and a reload made up a"
        " new head.",
        mutant="the head of the merged model and the names of its labels are missing",
        hall="classifier",
        variant="pytorch",
        make=damaged(_headless),
        check="it runs",
        words=r"could not be run|labels",
        merge=True,
    ),
    "first_token_of_a_target": Exhibit(
        bug="OpenNMT/CTranslate2#1552",
        name="the token that a target begins with",
        happened="The padding token was taken for the token that targets begin with; MADLAD-400 has another.",
        mutant="`decoder_start_token_id` in generation_config.json is another token",
        hall="translator",
        variant="onnx",
        make=like("files", "a translator's first token"),
        check="finding: special tokens",
        words=r"special tokens|its generation_config",
    ),
    "order_of_labels": Exhibit(
        bug="open-edge-platform/geti#2397",
        name="labels in another order",
        happened="Labels went through a set, so that a deployed classifier gave them other numbers than the training had.",
        mutant="`id2label` is permuted",
        hall="classifier",
        variant="pytorch",
        make=like("files", "labels permuted"),
        check="finding: labels",
        merge=True,
        words=r"its labels have other names",
    ),
    "padding_of_sources": Exhibit(
        bug="huggingface/optimum-executorch#230",
        name="padding of sources",
        happened="The exported encoder of T5 got no attention mask: padding changed what it made of every source.",
        mutant="the encoder reads padding as text",
        hall="translator",
        variant="onnx",
        make=like("sabotage", "mask ignored"),
        check="limit: padding",
        words=r"padded batch",
    ),
    "pooling": Exhibit(
        bug="Blaizzy/mlx-embeddings#63",
        name="another pooling",
        happened="Vectors were the mean of all tokens, also of models whose vector is that of the first one.",
        mutant="the pooling module takes the mean",
        hall="sentences",
        variant="pytorch",
        make=like("files", "pooling"),
        check="finding: files",
        words=r"its 1_Pooling/config.json is not",
    ),
}
