"""Deliveries: carry a published export to where it is used, read it back, and take away what a rule no longer keeps there.

Each kind of target is a folder of its own here, with a light `declaration.py`, found by the entry points `ckptd.deliveries`, and passes
one contract suite. Run as `python -m handlers.deliver` with an order on standard input (`daemon.contract.delivering.orders`): no stage,
since it changes nothing on this machine, and light, since many may wait for slow far ends.
"""
