"""What a Modelfile says, as the export writes it and as people change it."""

from __future__ import annotations

import pytest

from handlers.deliver import modelfile


def test_it_is_read_as_written() -> None:
    said = modelfile.read(
        "# a remark\nFROM ./a.gguf\nfrom ./mmproj.gguf\nADAPTER ./lora.gguf\n\nPARAMETER num_ctx 4096\nPARAMETER temperature 0.5\n"
        'PARAMETER stop "a\\nb"\nPARAMETER stop <eos>\nSYSTEM You are kind.\nTEMPLATE """{{ .System }}\n\n# no remark\n{{ .Prompt }}"""\n'
    )
    assert said.sources == ("./a.gguf", "./mmproj.gguf") and said.adapters == ("./lora.gguf",)
    assert said.parameters == {"num_ctx": 4096, "temperature": 0.5, "stop": ["a\nb", "<eos>"]}
    assert said.template == "{{ .System }}\n\n# no remark\n{{ .Prompt }}" and said.system == "You are kind."


@pytest.mark.parametrize("text", ["FROM", 'TEMPLATE """a', "PARAMETER num_ctx many", "42 x"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        modelfile.read(f"FROM ./a.gguf\n{text}\n")
