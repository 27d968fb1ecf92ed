"""The prompts that validation runs: a file of the user's, or built-in ones over several kinds of text."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.errors import Permanent, from_oserror
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.options import ValidateOptions

BUILT_IN = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "The lighthouse keeper climbed the stairs every evening, and",
    "User: What is the capital of Portugal?\nAssistant:",
    "Größe und Gewicht: 12 µm × 3 €, naïve café – «проверка» 東京",
    "import json\n\nwith open(path) as stream:\n    data =",
    "Q: A train leaves at 9:40 and arrives at 11:15. How long is the journey?\nA:",
    "# Shopping list\n\n- bread\n- apples\n-",
    "SELECT name, count(*) FROM orders WHERE year = 2024 GROUP BY",
    "In 1905 a clerk at the patent office published four papers;",
    '{"name": "sensor-7", "unit": "°C", "values": [21.5, 21.7,',
    "Once upon a time there was a small boat that",
    "Traduis en français : « Good morning, how are you? »\nRéponse :",
)
"""Code, prose, dialogue, figures, markup and several scripts, ordered so that few samples already mix them."""


def load(options: ValidateOptions) -> tuple[list[str], list[str]]:
    """The prompts to run and warnings about them.

    Raises Permanent when the file can't be read as UTF-8 text or holds no prompt.
    """
    operation = "read the validation prompts"
    if not options.prompts:
        texts, source = list(BUILT_IN), "built-in prompts"
    else:
        path, source = Path(options.prompts).expanduser(), f"lines of {options.prompts}"
        remedy = "set validate.prompts to a UTF-8 text file with one prompt a line, or to an empty string"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError as error:
            raise Permanent(FaultCode.PROMPTS_NOT_FOUND, operation, "there is no such file", remedy, path=path) from error
        except UnicodeDecodeError as error:
            raise Permanent(FaultCode.PROMPTS_NOT_TEXT, operation, "it is not UTF-8 text", remedy, path=path) from error
        except OSError as error:
            raise from_oserror(error, operation) from error
        texts = [line for line in lines if line.strip()]
        if not texts:
            raise Permanent(FaultCode.PROMPTS_EMPTY, operation, "it holds no prompt", remedy, path=path)
    warnings = []
    if options.samples > len(texts):
        warnings.append(f"{options.samples} samples were requested, but only {len(texts)} {source} exist: all of them were used.")
    return texts[: options.samples], warnings
