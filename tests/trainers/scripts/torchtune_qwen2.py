"""torchtune's LoRA of a Qwen2, whose queries need no other order, and whose adapter gets one."""

from torchtune.models.qwen2 import lora_qwen2
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.trainers.scripts.tuned import SHAPE, train

if __name__ == "__main__":
    base = Qwen2ForCausalLM(Qwen2Config(**SHAPE, rope_theta=1e6))
    train(base, "QWEN2", lora_qwen2, norm_eps=1e-6, rope_base=1e6)
