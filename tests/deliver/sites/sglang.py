"""SGLang by its requests; a delivery is stopped at each change of the folder from which it loads."""

from __future__ import annotations

from typing import ClassVar, Literal

from tests.deliver.servers.answering import AdapterSite


class SITE(AdapterSite):
    kind = "sglang"
    entry = "handlers.deliver.servers.sglang.target:SGLang"
    counts: ClassVar[Literal["requests", "calls"]] = "calls"
