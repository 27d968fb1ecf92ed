"""The halls of the museum, each made when an exhibit is first shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemon.contract.jobs.messages import ArtifactCheck
from tests.museum import gate
from tests.museum.exhibit import Exhibit
from tests.museum.hall import Hall
from tests.museum.halls import HALLS
from tests.sharing import shared
from tests.toolchains import real

state, toolchain, libraries = real.fixtures("gguf")
Open = Callable[[str], Hall]
BUILDING = 1800
"""Seconds for a test whose fixture compiles llama.cpp, if that is not installed."""


@pytest.fixture(autouse=True)
def imports(request: pytest.FixtureRequest) -> None:
    """What an exhibit's room needs beside the main environment."""
    place = request.node.callspec.params.get("place", "") if hasattr(request.node, "callspec") else ""
    if place.startswith("gguf/"):
        request.getfixturevalue("libraries")
        request.node.add_marker(pytest.mark.timeout(BUILDING))


@pytest.fixture(scope="session")
def halls(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """Name of a hall → the hall."""
    known: dict[str, Hall] = {}

    def opened(name: str) -> Hall:
        if name not in known:
            place, maker, kind = HALLS[name]
            known[name] = kind(shared(tmp_path_factory, place, maker).folder, tmp_path_factory.mktemp("hall"))
        return known[name]

    return opened


@pytest.fixture(scope="session")
def sound(halls: Open) -> Callable[[Exhibit], ArtifactCheck]:
    """The verdict about what an exhibit's mutant was made of, given once in this process."""
    known: dict[tuple[str, str, bool], ArtifactCheck] = {}

    def judged(exhibit: Exhibit) -> ArtifactCheck:
        key = (exhibit.hall, exhibit.variant, exhibit.merge)
        if key not in known:
            known[key] = gate.sound(halls(exhibit.hall), exhibit).judged()
        return known[key]

    return judged
