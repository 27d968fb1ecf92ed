"""The stages `evaluate-…`: the user's own tasks, by a command or by lm-evaluation-harness, on the live model and on artifacts.

An answer is a score for each item (`answers`). `command` asks a program of the user's, `harness` lm-evaluation-harness in its toolchain,
with our engines as its model; `comparing` pairs an artifact's items with the live model's.
"""
