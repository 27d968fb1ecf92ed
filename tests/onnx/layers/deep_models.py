"""Small models with many layers, of families whose layers differ in kind, and a canonical form of graphs, to compare them."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir

from daemon.contract.jobs.messages import StageContext
from handlers.onnx.options import OnnxOptions
from tests.onnx.conftest import SMALL, Exported, make_context, silent


def _sizes(**changed: Any) -> dict[str, Any]:
    return {**SMALL, **changed}


_GPT2 = {"n_embd": 64, "n_layer": 6, "n_head": 4, "n_positions": 128, "bos_token_id": 2, "eos_token_id": 1}
_BERT = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "max_position_embeddings": 128,
}  # fmt: skip

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", _sizes(num_hidden_layers=6)),
    "Llama, tied, many tokens": (
        "LlamaConfig", "LlamaForCausalLM", _sizes(num_hidden_layers=6, vocab_size=2000, eos_token_id=1999, tie_word_embeddings=True),
    ),
    "Qwen2, windows in the upper layers": (
        "Qwen2Config", "Qwen2ForCausalLM", _sizes(num_hidden_layers=9, use_sliding_window=True, max_window_layers=4, sliding_window=16),
    ),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _sizes(num_hidden_layers=7, head_dim=16)),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", _sizes(num_hidden_layers=9, sliding_window=16, head_dim=16)),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3ForCausalLM", _sizes(num_hidden_layers=14, sliding_window=16, head_dim=16)),
    "Gemma 4": (
        "Gemma4TextConfig", "Gemma4ForCausalLM",
        _sizes(num_hidden_layers=12, sliding_window=16, num_kv_shared_layers=0, hidden_size_per_layer_input=0, head_dim=16,
               global_head_dim=16, vocab_size_per_layer_input=320),
    ),
    "Mistral": ("MistralConfig", "MistralForCausalLM", _sizes(num_hidden_layers=6, sliding_window=16)),
    "Phi 3": ("Phi3Config", "Phi3ForCausalLM", _sizes(num_hidden_layers=6)),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 320, **_GPT2}),
    "GPT-2, many tokens": ("GPT2Config", "GPT2LMHeadModel", {**_GPT2, "vocab_size": 2000, "bos_token_id": 1999, "eos_token_id": 1999}),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _sizes(num_hidden_layers=6)),
    "OPT": (
        "OPTConfig", "OPTForCausalLM",
        {"vocab_size": 320, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
         "max_position_embeddings": 128, "word_embed_proj_dim": 64, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1},
    ),
    "Falcon": ("FalconConfig", "FalconForCausalLM", _sizes(num_hidden_layers=6)),
    "SmolLM3, layers without positions": ("SmolLM3Config", "SmolLM3ForCausalLM", _sizes(num_hidden_layers=12)),
    "Cohere 2": ("Cohere2Config", "Cohere2ForCausalLM", _sizes(num_hidden_layers=12, sliding_window=16)),
    "Granite": ("GraniteConfig", "GraniteForCausalLM", _sizes(num_hidden_layers=6)),
    "OLMo 2": ("Olmo2Config", "Olmo2ForCausalLM", _sizes(num_hidden_layers=6)),
    "StableLM": ("StableLmConfig", "StableLmForCausalLM", _sizes(num_hidden_layers=6)),
    "StarCoder 2": ("Starcoder2Config", "Starcoder2ForCausalLM", _sizes(num_hidden_layers=6)),
    "Qwen3-MoE": (
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        _sizes(num_hidden_layers=7, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16),
    ),
    "Qwen3-MoE, first layers dense": (
        "Qwen3MoeConfig", "Qwen3MoeForCausalLM",
        _sizes(num_hidden_layers=9, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, mlp_only_layers=[0, 1]),
    ),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM", _sizes(num_hidden_layers=6, num_local_experts=4)),
    "GPT-OSS": (
        "GptOssConfig", "GptOssForCausalLM",
        _sizes(num_hidden_layers=9, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=16),
    ),
    "BERT": ("BertConfig", "BertForMaskedLM", _BERT),
    "BERT, classifier": ("BertConfig", "BertForSequenceClassification", _BERT),
    "DistilBERT": (
        "DistilBertConfig", "DistilBertForTokenClassification",
        {"vocab_size": 320, "dim": 64, "hidden_dim": 96, "n_layers": 6, "n_heads": 4, "max_position_embeddings": 128},
    ),
    "ModernBERT": (
        "ModernBertConfig", "ModernBertModel",
        {**_BERT, "num_hidden_layers": 13, "local_attention": 16, "pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1,
         "sep_token_id": 2, "eos_token_id": 2},
    ),
    "Marian": (
        "MarianConfig", "MarianMTModel",
        {"vocab_size": 320, "d_model": 64, "encoder_layers": 6, "decoder_layers": 5, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64, "pad_token_id": 319,
         "eos_token_id": 0, "decoder_start_token_id": 319},
    ),
    "T5": (
        "T5Config", "T5ForConditionalGeneration",
        {"vocab_size": 320, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 6, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "BART, with two layers that decode": (
        "BartConfig", "BartForConditionalGeneration",
        {"vocab_size": 320, "d_model": 64, "encoder_layers": 6, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64, "bos_token_id": 1,
         "pad_token_id": 319, "eos_token_id": 0, "decoder_start_token_id": 0, "forced_eos_token_id": 0},
    ),
}  # fmt: skip


def make(folder: Path, name: str, *, seed: int = 3, **changed: Any) -> Path:
    """A model of MODELS in `folder`: random weights, of which none is 0 or 1 all over."""
    import torch
    import transformers

    config, kind, sizes = MODELS[name]
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **changed}))
    with torch.no_grad():
        stored = model.state_dict()
        buffers = [buffer for name, buffer in model.named_buffers() if name in stored and buffer.is_floating_point()]
        for value in (*model.parameters(), *buffers):
            value += (0.05 if value.ndim == 1 else 0.1) * torch.randn_like(value)
    model.save_pretrained(folder)
    return folder


def job(
    folder: Path, source: Path, shared_cache: Path | None = None, *, optimize: Any = "none", opset: int = 18, **options: Any
) -> StageContext:  # fmt: skip
    """An onnx job of `source`, with templates below `shared_cache`, if they are not to be its own."""
    context = make_context(folder, "onnx", {"merge": source}, source, opset=opset)
    work = context.work.with_options(OnnxOptions(**{"optimize": optimize, "templates": True, **options}))
    return context.model_copy(update={"work": work, **({"cache": str(shared_cache)} if shared_cache is not None else {})})


def run(context: StageContext) -> Exported:
    """Run the onnx stage."""
    from handlers.onnx.export import stage

    return Exported(Path(context.inputs["merge"]), Path(context.staging), stage.run(context, silent()))


def canonical(path: Path) -> tuple[dict[str, str], Counter[str]]:
    """A digest of what each output of a graph computes, and of each node: equal for graphs that differ in names and order alone.

    A size is the same wherever it is read from: of two tensors with the axis `sequence`, either may be asked for it.
    """
    model = ir.load(path)
    known: dict[ir.Value, str] = {}

    def of(value: ir.Value | None) -> str:
        if value is None:
            return "nothing"
        if value.is_initializer() and value.const_value is not None:
            tensor = value.const_value
            return f"{tensor.dtype} {tuple(tensor.shape.numpy())} {hashlib.sha256(tensor.tobytes()).hexdigest()}"
        return known.get(value) or f"input {value.name}"

    nodes: Counter[str] = Counter()
    for node in model.graph:
        inputs = [of(value) for value in node.inputs]
        attributes = sorted(
            f"{name} {one.value.tobytes() if one.type == ir.AttributeType.TENSOR else one.value!r}" for name, one in node.attributes.items()
        )
        first = node.inputs[0] if node.inputs else None
        if node.op_type == "Shape" and first is not None and first.shape is not None:
            start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
            sizes = [size if isinstance(size, int) else size.value for size in list(first.shape)[start:end]]
            if None not in sizes:
                inputs, attributes = [repr(sizes)], []
        if node.op_type in ("Add", "Mul", "And", "Or", "Max"):
            inputs = sorted(inputs)
        digest = hashlib.sha256(repr((node.domain, node.op_type, attributes, inputs)).encode()).hexdigest()
        nodes[f"{node.op_type} {digest}"] += 1
        for number, value in enumerate(node.outputs):
            known[value] = f"{digest} {number}"
    return {value.name or "": of(value) for value in model.graph.outputs}, nodes
