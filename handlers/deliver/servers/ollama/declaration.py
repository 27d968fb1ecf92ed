"""What the configuration knows of Ollama."""

from __future__ import annotations

from daemon.contract.delivering.declaration import DeliveryKind
from handlers.deliver.servers.options import AnsweringOptions


class OllamaOptions(AnsweringOptions):
    """The keys of `kind = "ollama"`."""

    url: str = "http://127.0.0.1:11434"
    """Its address, without a path behind it."""
    timeout: float = 300.0
    """Seconds for one answer, loading included."""
    alias: str = "{run}"
    """The model's name that clients ask for, `{run}` stands for the run's name. It moves once Ollama answers rightly under the
    version's own name, `RUN-STEP-DIGEST`. "": none."""
    base: str = ""
    """For the variant `gguf-adapter`: the model at Ollama that the adapter is laid over."""


KIND = DeliveryKind(
    name="ollama",
    about="a running Ollama, which gets a model under a name of its own and an alias",
    options=OllamaOptions,
    entry="handlers.deliver.servers.ollama.target:OllamaTarget",
    holds="model",
    variants=("gguf", "gguf-q8*", "gguf-*", "gguf-adapter"),
    packages=("urllib3",),
    extra="deliver",
    secret_variables=("OLLAMA_API_KEY",),
)
