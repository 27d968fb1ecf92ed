"""The kind `repository`: a folder of models that a server looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.frozen import Frozen


class RepositoryOptions(Frozen):
    """The keys of `kind = "repository"`."""

    folder: str
    """The model repository, on this machine or a share that is mounted here."""
    layout: Literal["triton", "genai"]
    """"triton": `MODEL/config.pbtxt` and `MODEL/STEP/model.onnx`; the configuration names the version that is served. "genai": a folder a
    version, `MODEL/RUN-STEP-DIGEST`, and the link `MODEL/latest`, which who loads resolves first: the link may move between two files."""
    model: str = "{run}"
    """The model's name, `{run}` stands for the run's name."""
    staging: str = ""
    """Folder on the same file system in which versions are put together; "": `.NAME.ckptd` beside the repository, where no server looks."""

    @field_validator("model")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        rest = value.replace("{run}", "run")
        if not rest or rest.startswith(".") or not all(letter.isascii() and (letter.isalnum() or letter in "._-") for letter in rest):
            raise ValueError("must be a name of letters, digits, '-', '_' and '.', with {run} for the run's name")
        return value

    @property
    def workplace(self) -> Path:
        """Where versions are put together."""
        folder = Path(self.folder)
        return Path(self.staging) if self.staging else folder.parent / f".{folder.name}.ckptd"


KIND = DeliveryKind(
    name="repository",
    about="a model repository from which Triton or onnxruntime-genai loads",
    options=RepositoryOptions,
    entry="handlers.deliver.repository.target:Repository",
    variants=("onnx-genai", "onnx-genai-*", "onnx", "onnx-*"),
)
