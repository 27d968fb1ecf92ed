"""A user's own training script, which knows nothing of ckptd: `trainer_script.py BASE RUN JSON_OPTIONS`."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from transformers import TrainerCallback

from tests import models


class Pause(TrainerCallback):
    """A step takes a while, as it does on a real model."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        time.sleep(self.seconds)


if __name__ == "__main__":
    base, run, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    pause = Pause(options.pop("pause"))
    resume = options.pop("resume", None)
    models.train_run(base, run, callbacks=[pause], resume=Path(resume) if resume else None, **options)
