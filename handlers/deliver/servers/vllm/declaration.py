"""What the configuration knows of vLLM."""

from daemon.contract.delivering.declaration import DeliveryKind
from handlers.deliver.servers.options import AdapterOptions

KIND = DeliveryKind(
    name="vllm", about="a running vLLM server, which loads the adapter over its base", options=AdapterOptions,
    entry="handlers.deliver.servers.vllm.target:Vllm", holds="model", variants=("pytorch-adapter",), secret_variables=("VLLM_API_KEY",),
    packages=("urllib3",), extra="deliver",
)  # fmt: skip
