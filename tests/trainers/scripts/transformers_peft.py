"""transformers' Trainer and PEFT."""

from tests import models
from tests.trainers.scripts.live import arguments, at_each_save

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("transformers", "peft")
    models.train_run(bases / "causal", run, callbacks=[at_each_save(record)])
