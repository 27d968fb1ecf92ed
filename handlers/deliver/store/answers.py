"""What S3 answers: XML, read by the names of its elements."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from handlers.deliver.calls import Said


def elements(said: Said, name: str) -> list[Any]:
    """Elements of an answer by their local name; [] where it is no XML."""
    try:
        return [each for each in ElementTree.fromstring(said.body).iter() if _local(each) == name] if said.body else []
    except ElementTree.ParseError:
        return []


def first(said: Said, name: str) -> str:
    """The text of the first such element; ""."""
    return next((each.text or "" for each in elements(said, name)), "")


def child(element: Any, name: str) -> str:
    """The text of an element's child; ""."""
    return next((each.text or "" for each in element if _local(each) == name), "")


def _local(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]
