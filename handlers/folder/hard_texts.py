"""Texts that tell one tokenizer from another: what is read otherwise by a second implementation is read so in one of these."""

TEXTS = (
    "How are you?", "Größe und Gewicht: 12 µm × 3 €, naïve café – «проверка» 東京 안녕 مرحبا", " two  spaces, a\ttab\nand\r\na line\n\n ",
    "1234567890 3.14 1,000", "don't I'LL we've", "👩‍👩‍👧 é é ﬁ ① Å ½", "def f(x):\n    return x**2  # !?#$", "<|im_start|>user",
    "https://a.b/c?d=e&f", "ＡＢ　Ｃ", "<<a>> >>b", ">>deu<<", "¿Qué? ½ ﬁ ①  Å", "a\n\n\n  b\n \n\tc",
    "x=1;y=22;zz=333_4444 CamelCaseHTTP2",
    "हिन्दी ไทย ελληνικά עברית", "",
)  # fmt: skip
