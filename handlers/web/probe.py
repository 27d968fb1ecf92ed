"""Probe of the toolchain `web`: this box's browser starts, loads a folder by transformers.js, and computes. Runs inside."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import tempfile
from pathlib import Path

from handlers.toolchains import inside

GRAPH = (
    "CAgSADqaAQofCglpbnB1dF9pZHMSAWEiBENhc3QqCQoCdG8YAaABAgoeCgFhCgFhEhFsYXN0X2hpZGRlbl9zdGF0ZSIDQWRkEgFnWiUKCWlucHV0X2lkcx"
    "IYChYIBxISCgwSCmJhdGNoX3NpemUKAggCYi0KEWxhc3RfaGlkZGVuX3N0YXRlEhgKFggBEhIKDBIKYmF0Y2hfc2l6ZQoCCAJCBAoAEBI="
)
"""A graph that doubles `input_ids`."""


def probe(options: argparse.Namespace) -> inside.Probed:
    """Double two numbers in a page. Raises whatever is wrong."""
    import numpy as np

    from handlers.web import known
    from handlers.web.browser.page import Page

    packages = Path(sys.prefix, "node_modules")  # it is no toolchain yet: its manifest is written after this
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "onnx").mkdir()
        (folder / "onnx" / "model.onnx").write_bytes(base64.b64decode(GRAPH))
        config = {"model_type": "bert", "architectures": ["BertModel"], "transformers.js_config": {"dtype": "fp32"}}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        page = Page(folder, packages)
        try:
            opened = page.ask("open", kind="AutoModel")
            made = page.run("model", {"input_ids": np.array([[2, 3]], np.int64)}, ["last_hidden_state"])["last_hidden_state"].numpy()
            browser = page.browser.version
        finally:
            page.close()
    if made.tolist() != [[4.0, 6.0]]:
        raise RuntimeError(f"the browser says that twice 2 and 3 are {made.tolist()}")
    if opened["library"] != known.release():
        raise RuntimeError(f"its transformers.js is {opened['library']}, not {known.release()}")
    return inside.Probed({"transformers.js": opened["library"], "browser": browser, **inside.versions(("onnxruntime", "tokenizers"))})


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
