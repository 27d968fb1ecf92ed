"""A loop of one's own with accelerate and PEFT."""

from peft import get_peft_model

from tests.trainers.scripts.accelerated import train
from tests.trainers.scripts.live import lora

if __name__ == "__main__":
    train(lambda model: get_peft_model(model, lora()))
