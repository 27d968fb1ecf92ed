"""The format `pytorch`: the merged model as transformers' own folder."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.declaration import Format, Limits, Thresholds, Variant

FORMAT = Format(
    name="pytorch",
    about="The merged model in the form that transformers reads, for PyTorch and other programs that read safetensors.",
    order=10,
    variants=(
        Variant(
            "pytorch", "handlers.pytorch.stage:run", 2,
            about="a standard transformers folder: config, safetensors, tokenizer, chat template",
            needs=("merge",), heavy=False, threads=1,
            settings=("merge.trust_remote_code",), libraries=("transformers", "tokenizers"),
            limits=Limits("torch", cache=1e-3, padding=1e-3),
            thresholds=Thresholds(agreement=0.97, kl=0.001, error=0.25),
            traits=frozenset({"merged", "tokenizer"}),
            usage=Path(__file__).with_name("usage.md"),
            library="transformers",
            also_for=frozenset({"cpu-server", "nvidia"}),
        ),
    ),
    families={
        "decoders": "compared with base + adapter, including greedy decoding",
        "encoder-decoders": "compared with base + adapter, including greedy decoding",
        "encoders and heads": "compared with base + adapter",
    },
)  # fmt: skip
