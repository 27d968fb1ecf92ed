"""A sentence is a template of the recorded catalogue by whatever way it gets into a fault, a reason or a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.words.sources import Templates

WAYS = {
    "an error of ours, caught and put into a fault": '''
class Unfit(Exception):
    """Why."""

def look(name):
    raise Unfit(f"the weight {name} is none of ours")

def stage(name):
    try:
        look(name)
    except Unfit as error:
        raise Permanent(CODE, "make it", str(error), "leave it out")
''',
    "a kind of that error": '''
class Unfit(Exception):
    """Why."""

class TooLarge(Unfit):
    """Why."""

def stage(name):
    try:
        raise TooLarge(f"the weight {name} is none of ours")
    except (OSError, Unfit) as error:
        return Fault(cause=f"it can't be made: {error}")
''',
    "a list of warnings that a function is given": '''
def look(name, warnings):
    warnings.append(f"the weight {name} is none of ours")
''',
    "a generator that another one passes on": '''
def weights(name):
    yield f"the weight {name} is none of ours"

def whole(name):
    yield from weights(name)

def stage(name):
    return Fault(cause="; ".join(whole(name)))
''',
    "a default that is given by its name": '''
def fault(name, *, cause=f"the weight {NAME} is none of ours"):
    return Fault(cause=cause)
''',
    "pairs in a declaration": '''
FORM = Spec(not_types=(("gpt", "the weight {name} is none of ours"),))

def refused(spec, name):
    return Fault(cause=next(why for kind, why in spec.not_types if kind == name))
''',
    "a function that is looked up by its name": '''
class Engine:
    @staticmethod
    def weights_difference(name) -> str | None:
        return f"the weight {name} is none of ours"
''',
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_sentence_is_recorded_by_each_way_into_a_result(way: str, tmp_path: Path) -> None:
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "stage.py").write_text(WAYS[way])
    assert [text.lower() for text in Templates(tmp_path).places if "none of ours" in text] == ["the weight {name} is none of ours"]


def test_a_sentence_that_goes_nowhere_is_none(tmp_path: Path) -> None:
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "stage.py").write_text('def look(name):\n    print(f"the weight {name} is none of ours")\n')
    assert Templates(tmp_path).places == {}
