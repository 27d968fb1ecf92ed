"""Deliveries: what a kind of target declares, and what a delivery's process is asked and says. Pure; both wings know it."""
