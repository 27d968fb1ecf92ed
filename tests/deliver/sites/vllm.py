"""vLLM by its requests; a delivery is stopped at each of them."""

from __future__ import annotations

from tests.deliver.servers.answering import AdapterSite


class SITE(AdapterSite):
    kind = "vllm"
    entry = "handlers.deliver.servers.vllm.target:Vllm"
