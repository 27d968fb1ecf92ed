"""What the configuration knows of llama.cpp's server."""

from daemon.contract.delivering.declaration import DeliveryKind
from handlers.deliver.servers.options import ServerOptions


class LlamaOptions(ServerOptions):
    """Of llama.cpp's server."""

    reload: tuple[str, ...]
    """Command with its arguments that restarts the server, as it reads files only when it starts: ["systemctl", "restart", "llama"]. The
    server is started with `--lora FOLDER/current.gguf` for adapters, or with `--model FOLDER/current.gguf`."""
    load_seconds: float = 120.0
    """Seconds after that command until it must answer with the new model."""


KIND = DeliveryKind(
    name="llamacpp", about="a running llama.cpp server, which is restarted with the adapter or the model", options=LlamaOptions,
    entry="handlers.deliver.servers.llamacpp.target:LlamaServer", holds="model", variants=("gguf-adapter", "gguf-*"),
    packages=("urllib3",), extra="deliver", secret_variables=("LLAMA_API_KEY",),
)  # fmt: skip
