"""What took longer than its limit of time says so."""

from __future__ import annotations

from daemon.operating.measuring.measure import over


def test_only_what_took_longer_than_it_was_to_says_so() -> None:
    assert over(60.9, 60.0) == [] == over(5.0, 60.0)
    (sentence,) = over(78.4, 60.0)
    assert sentence.startswith("It took 78 s instead of 60 s: ")
