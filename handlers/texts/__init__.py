"""Texts that models are run on: to compare artifacts with the live model, and to calibrate with. Never the same ones for both."""
