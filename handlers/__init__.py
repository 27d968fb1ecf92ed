"""The heavy wing of ckptd: one module or package a stage, each run in a child process of its own."""

import os

# ONNX Runtime from 1.29 on sends telemetry, and leaves a session file behind, unless this is set before its import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
