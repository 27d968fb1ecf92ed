"""What tokenizers are asked: texts to read, ids to write as text, and most characters that there are. Pure.

Called by the stage `reference`, which keeps the questions with the live model's answers. No exporter knows these texts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

PLAIN = ("How are you today?", "def add(a, b):\n    return a + b\n", "for i in range(10): print(i)")
"""Texts that every implementation of a tokenizer reads alike."""
TEXTS = (
    *PLAIN,
    " leading, two  inside, trailing \t", "\n\n  \n\ttabs\tand\r\nlines \n", "   ", "",
    "1 12 123 1234 12345 3.14159 1,000,000 0x1F 6.02e-23 ½ ²", "I'll don't WE'VE they'd it's O'Neil l’été",
    "if (x != y && z >= 0) { return a[i++] ? b->c : d::e; } // $%^&*~`|\\", "{\"key\": [null, true, -1.5e3], 'a': \"\\u00e9\"}",
    "https://user@example.org:8080/path/to?q=a+b&c=%20#top camelCaseHTTPServer snake_case__dunder kebab-case",
    "Größe, façade, Œuvre, Łódź, İstanbul ıI, ŞÇĞ, Ångström ÅÅ ﬁ ﬀ ẞß",
    "e\u0301 \u00e9 n\u0303 a\u0308\u0323 \u1e69 s\u0323\u0307 \u212b \u1100\u1161\u11a8 각",
    "Добрый день, ёжик! Ελληνικά άέήίόύώ ς", "שָׁלוֹם עולם مرحبا بِالعالَم ٠١٢٣ ۴۵۶ ‏", "हिन्दी में क्षत्रिय বাংলা தமிழ் ไทยไม่มีช่องว่าง ລາວ ខ្មែរ မြန်မာ",
    "東京都で寿司を食べた。カタカナ ﾊﾝｶｸ 汉字漢字 안녕하세요 ㄱㄴㄷ ＦＵＬＬ　ｗｉｄｔｈ", "ጤና ይስጥልኝ ᏣᎳᎩ ᐃᓄᒃ ქართული Հայերեն 𝔘𝔫𝔦 𐍈 𠜎",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 🇩🇪🇯🇵 ☺️ ☺ 1️⃣ 🧑🏿‍🚀", "zero\u200bwidth\u200d\u200c \u00a0nbsp\u2003em\u3000 soft\u00adhyphen \ufeffbom \u2028line",
    "“quotes” ‘single’ «guillemets» – — … • № ™ © ∑∫√∞ ≠ → ⇒ ♥",
    "<s> </s> [CLS] [SEP] [MASK] <|im_start|>user <unk> <pad> <<x>> >>de<< ▁ Ġ Ċ ## @@",
    "aaaaaaaaaaaaaaaaaaaa!!!!!!!!!!!!????....----====____", "Pneumonoultramicroscopicsilicovolcanoconiosis" * 6, "ab" * 200,
    "a\x00b\x01c\x1bd\x7fe\x85f", "```python\n\tif x:\n\t\treturn None  # TODO\n```\n<!-- a &amp; b --> &lt;p&gt; <p class=\"x\">",
    "line one.\nLine two;\tLine-three:line/four.  And U.S.A. e.g. 3rd.", " .,;!?'\"()[] . , ; ! ? n't 's I 'm",
)  # fmt: skip
PAIRS = (("What is it?", "It is a test."), ("", "only the second"), ("naïve café", "東京 1234"))
CHUNK = 48
"""Characters of one text of the sweep."""
RANDOM = 24
"""Sequences of random ids, and ids of each."""
EMOJI = (0x1F000, 0x1FB00)
"""Characters beyond the basic plane that people write."""
_SPARSE = ((0x3400, 0xA000), (0xAC00, 0xD7A4))
"""Blocks of thousands of characters that are read alike, of which one in 16 is asked."""


DRAWN = (
    (0xE000, 0xF900, 64), (0x10000, 0x20000, 160), (0x20000, 0x323B0, 64), (0xE0000, 0xE01F0, 16), (0xF0000, 0x110000, 32),
)  # fmt: skip
"""Blocks for private use and beyond the basic plane, and how many characters of each are drawn."""
RARE_TOKENS = 4096
"""Most tokens of such characters that are asked, evenly spaced ones where there are more."""


def around(tokens: Iterable[str]) -> list[str]:
    """Give texts with each token between words, at the beginning and glued to words."""
    return [f"a {token} b{token}c{token} {token}" for token in tokens] + [f"{token}a" for token in tokens]


def sweep() -> list[str]:
    """Give texts that hold the assigned characters of the basic plane, and emoji, each between a space and a letter."""
    left_out = ("Cn", "Cs", "Co")
    points = [
        point for point in (*range(0x20, 0xFFFE), *range(*EMOJI))
        if not any(low <= point < high and point % 16 for low, high in _SPARSE) and unicodedata.category(chr(point)) not in left_out
    ]  # fmt: skip
    return ["".join(f" {chr(point)}a" for point in points[start : start + CHUNK]) for start in range(0, len(points), CHUNK)]


def beyond(tokens: Mapping[str, int], seed: int) -> tuple[list[str], list[list[int]]]:
    """Give texts of characters for private use and beyond the basic plane: some that are drawn, and all that tokens of the vocabulary stand
    for; and the ids of those tokens, to be written as text. `tokens`: the vocabulary, as tokenizer.json has it."""
    random = np.random.default_rng(seed)
    drawn = [chr(point) for low, high, count in DRAWN for point in sorted(random.choice(high - low, count, replace=False) + low)]
    known = [(number, text) for token, number in tokens.items() if (text := spelt(token)) is not None and any(map(_is_rare, text))]
    known = [known[place * len(known) // RARE_TOKENS] for place in range(RARE_TOKENS)] if len(known) > RARE_TOKENS else known
    letters = [letter for letter in drawn if unicodedata.category(letter) != "Cn"]
    letters += sorted({letter for _, text in known for letter in text if _is_rare(letter) and ord(letter) not in range(*EMOJI)})
    texts = ["".join(f" {letter}a" for letter in letters[start : start + CHUNK]) for start in range(0, len(letters), CHUNK)]
    numbers = [number for number, _ in known]
    return texts, [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]


def spelt(token: str) -> str | None:
    """Give the text that a token stands for; None where it is a part of a character. Vocabularies of bytes write each byte as a character,
    see https://github.com/openai/gpt-2/blob/master/src/encoder.py (`bytes_to_unicode`)."""
    if not all(letter in _BYTES for letter in token):
        return token
    try:
        return bytes(_BYTES[letter] for letter in token).decode()
    except UnicodeDecodeError:
        return None


def _bytes() -> dict[str, int]:
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _bytes()


def _is_rare(letter: str) -> bool:
    return ord(letter) > 0xFFFF or unicodedata.category(letter) == "Co"


def sequences(read: Iterable[Sequence[int] | None], size: int) -> list[list[int]]:
    """Give ids to be written as text: those of texts that were read, and random ones below `size`."""
    random = np.random.default_rng(0)
    known = [list(ids) for ids in read if ids]
    return known + [random.integers(0, max(1, size), RANDOM).tolist() for _ in range(RANDOM)]


CONVERSATIONS: tuple[dict[str, object], ...] = (
    {"messages": [{"role": "user", "content": "How are you?"}]},
    {"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi, you!"}]},
    {"messages": [
        {"role": "user", "content": " 1\n"}, {"role": "assistant", "content": "two "}, {"role": "user", "content": "<b>3</b>"},
        {"role": "assistant", "content": "four"}, {"role": "user", "content": "five"},
    ]},
    {"messages": [
        {"role": "system", "content": "A"}, {"role": "user", "content": "B"}, {"role": "assistant", "content": "<think>x</think>C"},
        {"role": "user", "content": "D"}, {"role": "assistant", "content": "E, and"},
    ]},
    {"messages": [{"role": "assistant", "content": "first"}, {"role": "user", "content": "second"}]},
    {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [{"type": "function", "function": {
            "name": "weather", "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name"}}, "required": ["city"]},
        }}],
    },
    {"messages": [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}},
        ]},
        {"role": "tool", "name": "weather", "tool_call_id": "call12345", "content": "sunny"},
    ]},
    {"messages": [{"role": "user", "content": "How are you?"}], "enable_thinking": False},
    {"messages": [{"role": "user", "content": "How are you?"}], "enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "A café, "}, {"type": "text", "text": "寿司?"}]}]},
    {"messages": [
        {"role": "developer", "content": "Be short."}, {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2", "reasoning_content": "One more than 1.", "thinking": "One more than 1."},
        {"role": "user", "content": "And 2 + 1?"},
    ]},
    {
        "messages": [
            {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Weather and time in Zürich?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}},
                {"id": "call00002", "type": "function", "function": {"name": "time", "arguments": {"city": "Zürich"}}},
            ]},
            {"role": "tool", "name": "weather", "tool_call_id": "call00001", "content": "{\"sky\": \"grün\"}"},
            {"role": "tool", "name": "time", "tool_call_id": "call00002", "content": "12:00"},
            {"role": "assistant", "content": "Noon."}, {"role": "user", "content": "Thanks <b>&</b> bye"},
        ],
        "tools": [{"type": "function", "function": {"name": name, "description": f"{name}, für “eine” Stadt",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}} for name in ("weather", "time")],
    },
    {
        "messages": [{"role": "user", "content": "What do they say?"}],
        "documents": [{"title": "One", "text": "First."}, {"title": "Two", "text": "Second."}],
    },
    {"messages": [{"role": ("user", "assistant")[turn % 2], "content": f"turn {turn}"} for turn in range(21)]},
)  # fmt: skip
"""Conversations that templates write: one turn, system, many turns, a prefilled answer, an odd order, tools, a tool's answer; with and
without thinking, in parts, with another model's thoughts, with two tools that are called at once, documents, many turns."""
