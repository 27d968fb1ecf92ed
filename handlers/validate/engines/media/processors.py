"""A model's processor, as its users load it, and what it makes of a made-up picture or sound. Imported only inside workers."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor, AutoTokenizer

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.media import NOUNS, Media
from handlers.child import foreign
from handlers.models.files import PROCESSORS, TEMPLATES, TOKENIZER, has_tokenizer
from handlers.validate.engines.media.made_up import RATE, asked, picture, sound

_PARTS: dict[str, Any] = {"image_processor": AutoImageProcessor, "feature_extractor": AutoFeatureExtractor, "tokenizer": AutoTokenizer}
"""Parts of a processor, by their names in transformers."""
_REMEDY = (
    "install what the cause names into ckptd's environment (Pillow and torchvision prepare pictures), or give the base its processor's"
    " files; to publish it without this check, name the variant in validate.publish_unverified"
)


def load(folders: Sequence[Path], media: Media) -> Any:
    """Give the processor of the first of `folders` that has one, with the tokenizer of the first that has one.

    Permanent where there is none, or where the installed packages can't load it.
    """
    if not any((folder / name).is_file() for folder in folders for name in PROCESSORS):
        what = NOUNS[media]
        cause = f"there is no file that says how {what} are prepared ({', '.join(PROCESSORS[:2])})"
        raise Permanent(FaultCode.PROCESSOR_NOT_LOADABLE, "load the processor", cause, _REMEDY, path=folders[0])
    if len(folders) == 1:
        return _loaded(folders[0], media)
    with tempfile.TemporaryDirectory() as together:
        _gather(folders, Path(together))
        return _loaded(Path(together), media)


def _gather(folders: Sequence[Path], target: Path) -> None:
    """Link what a processor reads: the first folder's files come before the next one's, and tokenizers are never mixed."""
    spoken = next((folder for folder in folders if has_tokenizer(folder)), folders[0])
    for folder in reversed(folders):
        for name in (path.name for path in folder.iterdir()):
            of_tokenizer = any(fnmatchcase(name, pattern) for pattern in TOKENIZER)
            if (of_tokenizer and folder == spoken) or name in (*PROCESSORS, *TEMPLATES, "config.json"):
                with contextlib.suppress(FileNotFoundError):
                    (target / name).unlink()
                (target / name).symlink_to((folder / name).absolute())


def _loaded(folder: Path, media: Media) -> Any:
    auto: Any = AutoProcessor
    if not has_tokenizer(folder):  # an encoder, whose processor is that alone
        auto = AutoImageProcessor if media == "image" else AutoFeatureExtractor
    try:
        with foreign.reading("load the processor", folder, reader="transformers", code=FaultCode.PROCESSOR_NOT_LOADABLE, remedy=_REMEDY):
            return auto.from_pretrained(folder, local_files_only=True)
    except Permanent:
        with contextlib.suppress(Exception):
            return _without_videos(folder)
        raise


def _without_videos(folder: Path) -> Any:
    """Give the processor of a folder whose part for videos the installed packages can't load: it needs torchvision, pictures do not.

    As `ProcessorMixin.from_pretrained` of transformers 5.23 makes it (processing_utils.py), that part being None.
    """
    name = next(
        said["processor_class"] for file in ("processor_config.json", "preprocessor_config.json")
        if (folder / file).is_file() and "processor_class" in (said := json.loads((folder / file).read_bytes()))
    )  # fmt: skip
    whole: Any = getattr(transformers, name)

    class Still(whole):  # type: ignore[misc]
        def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
            return None if name == "video_processor" else super().check_argument_for_proper_class(name, argument)

    settings, _ = Still.get_processor_dict(folder, local_files_only=True)  # the chat template is among them
    parts = [
        None if part == "video_processor" else _PARTS[part].from_pretrained(folder, local_files_only=True)
        for part in Still.get_attributes()
    ]  # fmt: skip
    return Still.from_args_and_dict(parts, settings)


def prepared(processor: Any, media: Media, *numbers: int, tensors: str = "pt") -> Any:
    """Give the inputs that a processor makes of made-up pictures or sounds, and of texts where it has a tokenizer: tensors by name.

    Several are one batch, filled up as the processor does it. `tensors`: "pt", or "np" for arrays. Raises ValueError where the processor
    leaves pictures at sizes that don't fit into one batch.
    """
    tokenizer, filling = getattr(processor, "tokenizer", None), {"padding": True} if numbers[1:] else {}
    if media == "audio":
        extractor = getattr(processor, "feature_extractor", processor)
        rate = int(getattr(extractor, "sampling_rate", RATE))
        waves = [sound(number, rate) for number in numbers]
        if tokenizer is None or not _mark(processor, media):
            if hasattr(extractor, "chunk_length"):  # it fills all up to that length by itself
                filling = {}
            return extractor(waves, sampling_rate=rate, return_tensors=tensors, **filling)
        texts = [_written(processor, media, number) for number in numbers]
        return processor(text=texts, audio=waves, sampling_rate=rate, return_tensors=tensors, **filling)
    from PIL import Image  # a processor of pictures was loaded, which needs it

    images = [Image.fromarray(picture(number)) for number in numbers]
    if tokenizer is None:
        return processor(images=images, return_tensors=tensors)
    texts = [_written(processor, media, number) for number in numbers]
    return processor(text=texts, images=images, return_tensors=tensors, **filling)


def _mark(processor: Any, media: Media) -> str:
    """Give what stands for a picture or a sound in a text; "" where nothing does."""
    names = ("boi_token", "image_token") if media == "image" else ("audio_token",)
    mark = next((value for name in names if (value := getattr(processor, name, None))), "")
    return str(getattr(mark, "content", mark))


def _written(processor: Any, media: Media, number: int) -> str:
    """Give the prompt as the chat template writes it; where it has no place for a picture, the mark goes before the question."""
    mark, question = _mark(processor, media), asked(number)
    if not mark:  # two towers: the text is not about the picture
        return question
    content = [{"type": media}, {"type": "text", "text": question}]
    written = ""
    with contextlib.suppress(Exception):  # no template, or one for texts alone
        written = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False)
    return written if mark in written else f"{mark}\n{question}".lstrip("\n")
