"""What the configuration knows of SGLang."""

from daemon.contract.delivering.declaration import DeliveryKind
from handlers.deliver.servers.options import AdapterOptions

KIND = DeliveryKind(
    name="sglang", about="a running SGLang server, which loads the adapter over its base", options=AdapterOptions,
    entry="handlers.deliver.servers.sglang.target:SGLang", holds="model", variants=("pytorch-adapter",),
    packages=("urllib3",), extra="deliver",
)  # fmt: skip
