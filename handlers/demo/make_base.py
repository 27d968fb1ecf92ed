"""Makes the demo's base: a real Qwen3 of a million parameters that writes short sentences after half a minute.

`python -m handlers.demo.make_base FOLDER --seconds 25 --threads 2` is called by `ckptd demo`; it works by itself too. The folder
is what a published base looks like: bf16 safetensors, tokenizer, chat template, generation config.
It is a language model of its size: the style is that of a manual, the sense is not.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from handlers.demo import corpus
from handlers.demo.events import complain, empty_folder, prepare_libraries, say

VOCABULARY = 2048
PAD, END = "<|pad|>", "<|end|>"
# A request becomes a question in one line and the answer is the line below it: the only dialogue that a model of docstrings could hold.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{{ message['content'] }}<|end|>"
    "{% else %}{{ message['content'] }}?\n{% endif %}{% endfor %}"
)
PROMPT, PENALTY = "Create a", 1.15
"""How the base is shown: the same prompt and repetition penalty that `ckptd demo` gives to the `example.py` of an artifact."""
BATCH, LENGTH = 8, 128
MATRIX_RATE, OTHER_RATE = 0.02, 6e-3
WARMUP_STEPS, DECAY_SHARE = 20, 0.6
STEPS_AT_LEAST, LONGEST = 200, 1.6
"""A box that is busy with other things gets up to 1.6 times the seconds asked for, until it has done 200 steps."""
REPORT_SECONDS = 0.5


def make_tokenizer(texts: list[str], tokens: int = VOCABULARY) -> Any:
    """Byte-level BPE of so many tokens learnt from `texts`, as a PreTrainedTokenizerFast with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens, special_tokens=[PAD, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model() -> Any:
    """An untrained Qwen3ForCausalLM in fp32: 3 layers, hidden 128, tied embeddings, 0.85 M parameters."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True, initializer_range=0.04,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, temperature=0.7, top_k=20, max_new_tokens=80, pad_token_id=0, eos_token_id=1)
    return model


def token_stream(tokenizer: Any, texts: list[str]) -> Any:
    """All texts, an end token after each, as one int64 tensor of shape (tokens,)."""
    import torch

    end = tokenizer.eos_token_id
    rows = tokenizer.backend_tokenizer.encode_batch(texts)
    return torch.tensor([token for row in rows for token in (*row.ids, end)])


def _optimizers(model: Any) -> list[Any]:
    """Muon for the layers' matrices, AdamW for the rest: 3.45 nats instead of 3.70 after the same 400 steps."""
    import torch

    matrices: list[Any] = []
    others: list[Any] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.0, momentum=0.95)
    adam = torch.optim.AdamW(others, lr=OTHER_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


def _fraction(time_share: float, step: int) -> float:
    return min(time_share, max(step / STEPS_AT_LEAST, time_share / LONGEST))


def train(model: Any, stream: Any, seconds: float, steps: int = 0) -> float:
    """Train for about `seconds` of wall time, the learning rate falling with the clock; give the last steps' mean loss in nats.

    With `steps` it is that many steps, however long they take: the same on a slow box as on a fast one.
    """
    import torch

    optimizers = _optimizers(model)
    model.train()
    started = said = time.monotonic()
    step, smooth = 0, 0.0
    while (fraction := step / steps if steps else _fraction((time.monotonic() - started) / seconds, step)) < 1:
        scale = min(1.0, (step + 1) / WARMUP_STEPS) * min(1.0, (1 - fraction) / DECAY_SHARE)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group["peak"] * scale
        offsets = torch.randint(0, len(stream) - LENGTH - 1, (BATCH,))
        rows = torch.stack([stream[offset : offset + LENGTH + 1] for offset in offsets.tolist()])
        logits = model(input_ids=rows[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        smooth = loss.item() if step == 0 else 0.9 * smooth + 0.1 * loss.item()
        if step == 0 or time.monotonic() - said > REPORT_SECONDS:
            said = time.monotonic()
            say("step", step=step + 1, fraction=round(fraction, 3), loss=round(smooth, 3))
        step += 1
    say("step", step=step, fraction=1.0, loss=round(smooth, 3))
    return smooth


def write_after(model: Any, tokenizer: Any, prompt: str) -> str:
    """The prompt and what the model finds most likely after it, repetition penalized, up to its own end or 40 tokens."""
    import torch

    model.eval()
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    with torch.inference_mode():
        for _ in range(40):
            logits = model(input_ids=ids, use_cache=False).logits[:, -1].float()
            seen = logits.gather(1, ids)
            following = logits.scatter(1, ids, torch.where(seen > 0, seen / PENALTY, seen * PENALTY)).argmax(-1, keepdim=True)
            if following.item() == tokenizer.eos_token_id:
                break
            ids = torch.cat([ids, following], 1)
    return str(tokenizer.decode(ids[0].tolist())).rstrip()


def make_base(folder: Path, seconds: float, steps: int = 0) -> None:
    """Write the trained base into `folder`, telling each step as an event. Raises UsageError for a folder that is not empty."""
    import torch

    folder = empty_folder(folder, "the base model")
    texts = corpus.base_texts()
    say("corpus", docstrings=len(texts), characters=sum(map(len, texts)))
    tokenizer = make_tokenizer(texts)
    stream = token_stream(tokenizer, texts)
    say("tokenizer", vocabulary=len(tokenizer), tokens=len(stream))
    model = make_model()
    loss = train(model, stream, seconds, steps)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    say("sample", prompt=PROMPT, text=write_after(model, tokenizer, PROMPT))
    size = sum(path.stat().st_size for path in folder.iterdir())
    say("saved", folder=str(folder), loss=round(loss, 3), parameters=model.num_parameters(), bytes=size)


def main(arguments: list[str] | None = None) -> int:
    """The command line; give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m handlers.demo.make_base", description=make_base.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=25.0, help="wall time of the training alone; up to 1.6 times that on a busy machine"
    )
    parser.add_argument("--steps", type=int, default=0, help="train for so many steps instead of a time")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    try:
        prepare_libraries(options.threads)
        if options.seconds <= 0:
            raise UsageError(
                FaultCode.BAD_OPTION, "train the base", f"{options.seconds} seconds is not a positive time", "give --seconds above 0"
            )
        if options.steps < 0:
            raise UsageError(
                FaultCode.BAD_OPTION,
                "train the base",
                f"{options.steps} is not a positive number of steps",
                "give --steps of 1 or more, or leave it out",
            )
        make_base(options.folder, options.seconds, options.steps)
    except UsageError as error:
        return complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
