"""The parts of `gate.py`: models, faults, forms, the truth about an artifact, the gate's judgement, and the figures of both."""
