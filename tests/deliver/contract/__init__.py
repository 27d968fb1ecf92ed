"""What every kind of delivery target must do, checked over a real far end, in the real process of a delivery.

A kind passes it unchanged: its `Site` (site.py) lies in `tests/deliver/sites/`, and `test_contract.py` runs each check of `checks/` over
each of them. `reference.py` is a target over a small server of its own; its mutants are what the checks must find.
"""
