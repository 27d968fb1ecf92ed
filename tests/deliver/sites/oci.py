"""A registry that is held to the specification and knows conditional writes."""

from __future__ import annotations

from tests.deliver.oci.far_end import RegistrySite
from tests.deliver.oci.registry import Manners, Registry


class SITE(RegistrySite):
    def start(self) -> None:
        self.registry = Registry(Manners(conditional=True, page=3))
        self.port = self.registry.port
        self._front()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self.registry.close()

    def leftovers(self) -> list[str]:
        """Uploads that have begun: one without contents may be one whose number nobody got to know."""
        return [
            f"{name}: {len(data)} bytes" for name, repository in self.registry.repositories.items()
            for data in repository.uploads.values() if data
        ]  # fmt: skip

    def stored(self) -> int:
        self.registry.collect()
        return sum(
            sum(map(len, each.blobs.values()))
            + sum(len(body) for _, body in each.manifests.values())
            + sum(map(len, each.uploads.values()))
            for each in self.registry.repositories.values()
        )
