"""Pico models for the tests: made here, briefly trained with the real Trainer, nothing downloaded.

Imports of torch and transformers stay inside the functions: most tests never need them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

TEXTS = [
    "def add(a, b):\n    return a + b\n",
    "for name in sorted(names):\n    print(name)\n",
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n",
    "with open(path) as stream:\n    return stream.read()\n",
    "import os\nimport sys\n\n\ndef main():\n    return 0\n",
    "The daemon watches the directories where trainers write.\n",
]
CHAT_TEMPLATE = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"


def make_tokenizer() -> Any:
    """A byte-level BPE tokenizer of 320 tokens, trained on TEXTS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|pad|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|end|>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_base(folder: Path, *, dtype: str = "bfloat16", seed: int = 0, **overrides: Any) -> Path:
    """A Qwen3 base of two layers (hidden 64), with norms and weights wide enough that the argmax means something."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": True,
        "initializer_range": 0.15, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }  # fmt: skip
    model = Qwen3ForCausalLM(Qwen3Config(**{**options, **overrides}))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
    model.generation_config.max_new_tokens = 16
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def train_run(
    base: Path, run: Path, *, steps: int = 4, save_steps: int = 2, learning_rate: float = 2e-2, lora: dict[str, Any] | None = None,
    callbacks: list[Any] | None = None, resume: Path | None = None, batch: int = 2, **arguments: Any,
) -> Path:  # fmt: skip
    """A real training run: Trainer + PEFT LoRA on TEXTS; leaves `run/checkpoint-N` as Trainer writes it.

    `resume` goes on from a checkpoint; another `batch` makes other weights of the same steps.
    """
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    options: dict[str, Any] = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj", "o_proj", "down_proj"],
        "task_type": "CAUSAL_LM",
    }
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), LoraConfig(**{**options, **(lora or {})}))
    settings = TrainingArguments(
        output_dir=str(run), max_steps=steps, save_steps=save_steps, per_device_train_batch_size=batch, learning_rate=learning_rate,
        logging_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, seed=1, **arguments,
    )  # fmt: skip
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    parts = {"train_dataset": rows, "processing_class": tokenizer, "data_collator": collator, "callbacks": callbacks}
    Trainer(model=model, args=settings, **parts).train(resume_from_checkpoint=str(resume) if resume else None)
    return run


def read_json(path: Path) -> Any:
    """The JSON value in a file."""
    return json.loads(path.read_text())
