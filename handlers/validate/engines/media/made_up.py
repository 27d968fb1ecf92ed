"""Made-up pictures and sounds, by number: the same for the live model and for every artifact. numpy; Pillow to write a picture."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

ASKED = ("Describe it.", "What is the first thing that you notice here, and why?")
"""What is asked of a picture or a sound, in turns."""
SIZES = ((96, 128), (128, 96), (112, 112), (64, 160))
"""Heights and widths of pictures, in turns: processors cut, scale and pad by them."""
RATE = 16000
"""Samples a second of a sound, where a processor names no other rate."""
STEPS = 1 << 15
"""Of a sound's values, from 0 to 1."""
SECONDS = (1.0, 1.6, 0.7, 1.3)


def picture(number: int) -> np.ndarray:
    """Give a picture (H, W, 3) uint8: two gradients, rectangles, and noise, so that no patch is like another."""
    random = np.random.default_rng(number)
    height, width = SIZES[number % len(SIZES)]
    rows, columns = np.mgrid[0:height, 0:width]
    image = np.stack([rows * 255 / height, columns * 255 / width, (rows + columns) % 256], axis=-1)
    for _ in range(6):
        top, left = int(random.integers(0, height - 16)), int(random.integers(0, width - 16))
        image[top : top + int(random.integers(8, 48)), left : left + int(random.integers(8, 48))] = random.integers(0, 256, 3)
    noise: np.ndarray = np.clip(image + random.normal(0, 12, image.shape), 0, 255).astype(np.uint8)
    return noise


def sound(number: int, rate: int = RATE) -> np.ndarray:
    """Give a sound (samples,) float32 of about a second: a rising tone, a steady one, and noise; in steps that a file of 16 bits keeps."""
    random = np.random.default_rng(number)
    time = np.arange(int(rate * SECONDS[number % len(SECONDS)])) / rate
    low, high = random.uniform(90, 400), random.uniform(600, 3000)
    tones = 0.4 * np.sin(2 * np.pi * (low + 200 * time) * time) + 0.2 * np.sin(2 * np.pi * high * time) * (np.sin(7 * time) > 0)
    return np.asarray(np.round((tones + random.normal(0, 0.02, len(time))) * STEPS) / STEPS, np.float32)


def asked(number: int) -> str:
    """Give the text beside a picture or sound."""
    return ASKED[number % len(ASKED)]


def write(folder: Path, number: int, pictured: bool, rate: int = RATE) -> Path:
    """Write a picture or a sound into `folder`, without loss; give the file."""
    if pictured:
        from PIL import Image

        path = folder / f"{number}.png"
        Image.fromarray(picture(number)).save(path)
        return path
    path = folder / f"{number}.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes((sound(number, rate) * STEPS).astype("<i2").tobytes())
    return path
