"""The type of URLs that hold secrets."""

from __future__ import annotations

from pydantic import Secret

from daemon.contract.faults.secrets import STARS, scheme_of


class SecretUrl(Secret[str]):
    """The URL of a service: shown, dumped and logged by its scheme alone. `get_secret_value` gives it to what sends."""

    def _display(self) -> str:
        scheme = scheme_of(self.get_secret_value())
        return f"{scheme}://{STARS}" if scheme else STARS
