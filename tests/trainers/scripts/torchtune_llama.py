"""torchtune's LoRA of a Llama."""

from torchtune.models.llama3 import lora_llama3
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainers.scripts.tuned import SHAPE, train

if __name__ == "__main__":
    base = LlamaForCausalLM(LlamaConfig(**SHAPE, rope_theta=5e5, rms_norm_eps=1e-5))
    train(base, "LLAMA3", lora_llama3, norm_eps=1e-5, rope_base=500_000)
