"""Run the encoder of pictures or sounds in this folder: classes, letters of what is said, or vectors; which of these, the model says.

    python example.py picture.png                                    (classes, or vectors)
    python example.py picture.png --text "a cat" --text "a dog"      (two towers: which text is about the picture)
    python example.py sound.wav                                      (classes, letters, or vectors)

Needs onnxruntime, numpy, and transformers for the processor that lies in the folder (with pillow, and for some processors torch and
torchvision, for pictures). Sounds are WAV files of 16 bits. Answers in JSON.
"""

from __future__ import annotations

import argparse
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

FOLDER = Path(__file__).resolve().parent


def read(name: str) -> dict[str, Any]:
    """A JSON file of this folder."""
    value: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return value


CONFIG, GRAPHS = read("config.json"), read("graphs.json")
PICTURES = any(port["name"] == "pixel_values" for port in GRAPHS["graphs"][0]["inputs"])


def sound_in(file: str, rate: int) -> np.ndarray:
    """The mean of a file's channels, (samples,) float32."""
    with wave.open(file) as opened:
        if opened.getsampwidth() != 2 or opened.getframerate() != rate:
            raise SystemExit(f"The model hears sounds of {rate} samples a second, and this reads 16 bits each: convert {file} first")
        samples = np.frombuffer(opened.readframes(opened.getnframes()), "<i2").reshape(-1, opened.getnchannels())
    mean: np.ndarray = (samples.astype(np.float32) / 32768).mean(axis=1)
    return mean


def prepared(file: str, texts: list[str]) -> dict[str, np.ndarray]:
    """What the folder's processor makes of a file, and of texts."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor

    if not PICTURES:
        extractor: Any = AutoFeatureExtractor.from_pretrained(FOLDER)
        return dict(extractor(sound_in(file, extractor.sampling_rate), sampling_rate=extractor.sampling_rate, return_tensors="np"))
    from PIL import Image

    image = Image.open(file).convert("RGB")
    if GRAPHS["graphs"][0]["inputs"][0]["name"] != "input_ids":
        processor: Any = AutoImageProcessor.from_pretrained(FOLDER)
        return dict(processor(images=image, return_tensors="np"))
    both: Any = AutoProcessor.from_pretrained(FOLDER)
    return dict(both(text=texts, images=image, padding=True, return_tensors="np"))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Shares of the last axis."""
    powers: np.ndarray = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(-1, keepdims=True)
    return shares


def classes(logits: np.ndarray) -> list[dict[str, Any]]:
    """Labels with their scores, the likeliest first; of a model with several labels at once, each for itself."""
    several = CONFIG.get("problem_type") == "multi_label_classification"
    shares = 1 / (1 + np.exp(-logits.astype(np.float64))) if several else softmax(logits)
    names = CONFIG.get("id2label") or {}
    order = np.argsort(-shares, kind="stable")
    return [{"label": names.get(str(number), f"LABEL_{number}"), "score": round(float(shares[number]), 4)} for number in order]


def letters(logits: np.ndarray) -> dict[str, Any]:
    """What is said: the likeliest token of each frame, repetitions once, without the blank; as text where there is a tokenizer."""
    frames, blank = logits.argmax(-1).tolist(), int(CONFIG.get("pad_token_id") or 0)
    kept = [token for place, token in enumerate(frames) if token != blank and (place == 0 or frames[place - 1] != token)]
    if not any((FOLDER / name).is_file() for name in ("vocab.json", "tokenizer.json")):
        return {"tokens": kept}
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(FOLDER)
    return {"tokens": kept, "text": tokenizer.decode(frames if hasattr(tokenizer, "word_delimiter_token") else kept)}


def main() -> None:
    """Print the answer as JSON."""
    parser = argparse.ArgumentParser(description="Run an encoder of pictures or sounds.")
    parser.add_argument("file", help="a picture, or a sound with one or more channels")
    parser.add_argument("--text", action="append", help="a text that may be about the picture, for a model of two towers; may be repeated")
    parser.add_argument("--npz", help="write the graph's inputs and outputs to this file for numpy too")
    options = parser.parse_args()
    texts = options.text or ["a photo"]
    session = onnxruntime.InferenceSession(str(FOLDER / GRAPHS["graphs"][0]["file"]), providers=["CPUExecutionProvider"])
    given, types = prepared(options.file, texts), {"tensor(float16)": "float16", "tensor(int64)": "int64"}
    feeds = {port.name: given[port.name].astype(types.get(port.type, "float32")) for port in session.get_inputs()}
    outputs = dict(zip([port.name for port in session.get_outputs()], session.run(None, feeds), strict=True))
    if options.npz:
        values: dict[str, Any] = {**feeds, **outputs}
        np.savez(options.npz, **values)
    answer: Any = {name: {"shape": list(value.shape), "first": value.ravel()[:4].tolist()} for name, value in outputs.items()}
    if "logits_per_image" in outputs:
        shares = softmax(outputs["logits_per_image"][0])
        answer = [{"text": text, "score": round(float(share), 4)} for text, share in zip(texts, shares, strict=True)]
    elif "logits" in outputs:
        logits = outputs["logits"][0].astype(np.float32)
        answer = letters(logits) if logits.ndim == 2 else classes(logits)
    print(json.dumps(answer, ensure_ascii=False))


if __name__ == "__main__":
    main()
