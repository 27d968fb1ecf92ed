"""What the kind `hub` is: the keys of its table, what it imports and where its secret may come from."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import field_validator

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.frozen import Frozen
from handlers.deliver.addresses import is_address

REPOSITORY = re.compile(r"[\w.-]+/(?:[\w.-]|\{run\})+", re.ASCII)


class HubOptions(Frozen):
    """The keys of `kind = "hub"`."""

    repo: str
    """The repository, `OWNER/NAME`; `{run}` stands for the run's name. It is made if it is not there."""
    private: bool = True
    """Whether a repository that is made is private. One that is there stays as it is."""
    endpoint: str = ""
    """Address of the Hub; "": the variable `HF_ENDPOINT`, or https://huggingface.co. For mirrors and services of one's own."""
    revisions: Literal["tag", "branch"] = "tag"
    """What names a checkpoint's version, `RUN-STEP-DIGEST`: a tag, or a branch."""
    layout: Literal["ready", "folders"] = "ready"
    """"ready": the variant of `top` lies at the top, GGUF files beside it, graphs for transformers.js in `onnx/`, everything else in its
    folder. "folders": one folder per variant, as in the export."""
    top: tuple[str, ...] = ("pytorch", "pytorch-bf16", "pytorch-fp16", "pytorch-*")
    """Patterns of the variant that lies at the top, where `from_pretrained` looks: the first that was published."""
    main: bool = True
    """Whether `main` is moved to what is delivered. Without it a version has its own name alone."""
    card: bool = True
    """Whether README.md gets a section about the version. Text outside of ckptd's marks always stays as it is."""
    license: str = ""
    """`license` of the model card, as the Hub spells it ("apache-2.0"); "": none is written."""
    tags: tuple[str, ...] = ()
    """`tags` of the model card."""

    @field_validator("repo")
    @classmethod
    def _is_a_repository(cls, value: str) -> str:
        if not REPOSITORY.fullmatch(value):
            raise ValueError("must be OWNER/NAME of letters, digits, '-', '_' and '.', with {run} for the run's name")
        return value

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        if value and not is_address(value):
            raise ValueError("must be an address like https://huggingface.co, without a password")
        return value.rstrip("/")


KIND = DeliveryKind(
    name="hub",
    about="a repository of the Hugging Face Hub",
    options=HubOptions,
    entry="handlers.deliver.hub.target:Hub",
    packages=("urllib3",),
    secret_variables=("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT"),
)
