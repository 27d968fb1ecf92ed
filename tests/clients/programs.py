"""Programs as the documentation of stock clients has them, each run on one folder: `python programs.py ORDERS ANSWERS`.

ORDERS, JSON: a list of [name of the program, folder, text]; ANSWERS: their answers in that order, {"raised": …} for what one raised. It
runs in a client's own environment and imports nothing of ckptd. Each program says the page that it is from, and gives the arguments of that
page alone; where its lines sample, also the one by which its documentation takes the most likely token.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

FP32 = {"INFERENCE_PRECISION_HINT": "f32"}
"""Of OpenVINO: in the bf16 that it takes where the processor has it, so small a model answers something else."""


def pipeline(folder: str, text: str) -> Any:
    """huggingface.co/docs/transformers/pipeline_tutorial."""
    from transformers import pipeline

    generator = pipeline("text-generation", model=folder)
    return generator(text, do_sample=False)[0]["generated_text"]


def pipeline_chat(folder: str, text: str) -> Any:
    """huggingface.co/docs/transformers/conversations."""
    from transformers import pipeline

    generator = pipeline("text-generation", model=folder)
    return generator([{"role": "user", "content": text}], do_sample=False)[0]["generated_text"][-1]["content"]


def generate(folder: str, text: str) -> Any:
    """huggingface.co/docs/transformers/llm_tutorial: generate."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    inputs = tokenizer([text], return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)[0]


def generate_batch(folder: str, text: str) -> Any:
    """The same page, "Padding side": two texts of unequal lengths at once; the answer is that to the shorter one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    inputs = tokenizer([text, text + " and" + text], padding=True, return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)[0]


def translate(folder: str, text: str) -> Any:
    """huggingface.co/docs/transformers/model_doc/t5."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    output = model.generate(**tokenizer(text, return_tensors="pt"))
    return tokenizer.decode(output[0], skip_special_tokens=True)


def classify(folder: str, text: str) -> Any:
    """huggingface.co/docs/transformers/tasks/sequence_classification: inference."""
    from transformers import pipeline

    classifier = pipeline("sentiment-analysis", model=folder)
    return classifier(text)[0]


def peft(folder: str, text: str) -> Any:
    """huggingface.co/docs/peft/quicktour: inference."""
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

    model = AutoPeftModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.eval()
    inputs = tokenizer(text, return_tensors="pt")
    outputs = model.generate(input_ids=inputs["input_ids"])
    return tokenizer.batch_decode(outputs.detach().cpu().numpy(), skip_special_tokens=True)[0]


def ort(folder: str, text: str) -> Any:
    """huggingface.co/docs/optimum-onnx/onnxruntime/package_reference/modeling_ort: ORTModelForCausalLM, without its sampling."""
    from optimum.onnxruntime import ORTModelForCausalLM
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = ORTModelForCausalLM.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    return tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)[0]


def ort_pipeline(folder: str, text: str) -> Any:
    """The same page: with transformers' pipeline."""
    from optimum.onnxruntime import ORTModelForCausalLM
    from transformers import AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = ORTModelForCausalLM.from_pretrained(folder)
    return pipeline("text-generation", model=model, tokenizer=tokenizer)(text, do_sample=False)[0]["generated_text"]


def ort_translate(folder: str, text: str) -> Any:
    """The same page: ORTModelForSeq2SeqLM."""
    from optimum.onnxruntime import ORTModelForSeq2SeqLM
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = ORTModelForSeq2SeqLM.from_pretrained(folder)
    return tokenizer.batch_decode(model.generate(**tokenizer(text, return_tensors="pt")), skip_special_tokens=True)[0]


def ort_classify(folder: str, text: str) -> Any:
    """The same page: ORTModelForSequenceClassification."""
    from optimum.onnxruntime import ORTModelForSequenceClassification
    from transformers import AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = ORTModelForSequenceClassification.from_pretrained(folder)
    return pipeline("text-classification", model=model, tokenizer=tokenizer)(text)[0]


def ov(folder: str, text: str) -> Any:
    """huggingface.co/docs/optimum-intel/openvino/inference: OVModelForCausalLM in transformers' pipeline."""
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer, pipeline

    model = OVModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return pipeline("text-generation", model=model, tokenizer=tokenizer)(text, do_sample=False)[0]["generated_text"]


def ov_translate(folder: str, text: str) -> Any:
    """The same page: OVModelForSeq2SeqLM, with its setting for fp32, see FP32."""
    from optimum.intel import OVModelForSeq2SeqLM
    from transformers import AutoTokenizer

    model = OVModelForSeq2SeqLM.from_pretrained(folder, ov_config=FP32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer.batch_decode(model.generate(**tokenizer(text, return_tensors="pt")), skip_special_tokens=True)[0]


def ov_classify(folder: str, text: str) -> Any:
    """The same page: OVModelForSequenceClassification, in fp32."""
    from optimum.intel import OVModelForSequenceClassification
    from transformers import AutoTokenizer, pipeline

    model = OVModelForSequenceClassification.from_pretrained(folder, ov_config=FP32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return pipeline("text-classification", model=model, tokenizer=tokenizer)(text)[0]


def ov_genai(folder: str, text: str) -> Any:
    """openvinotoolkit.github.io/openvino.genai/docs/getting-started/quick-start-guide; it fills in the chat template by itself."""
    import openvino_genai

    pipe = openvino_genai.LLMPipeline(folder, "CPU")
    return pipe.generate(text, max_new_tokens=48)


def genai(folder: str, text: str) -> Any:
    """github.com/microsoft/onnxruntime-genai: README, "Sample code for Phi-3 in Python", without Phi-3's own template."""
    import onnxruntime_genai as og

    model = og.Model(folder)
    tokenizer = og.Tokenizer(model)
    tokenizer_stream = tokenizer.create_stream()
    search_options = {"max_length": 64, "batch_size": 1}
    input_tokens = tokenizer.encode(text)
    params = og.GeneratorParams(model)
    params.set_search_options(**search_options)
    generator = og.Generator(model, params)
    generator.append_tokens(input_tokens)
    written = ""
    while not generator.is_done():
        generator.generate_next_token()
        written += tokenizer_stream.decode(generator.get_next_tokens()[0])
    return written


def genai_chat(folder: str, text: str) -> Any:
    """github.com/microsoft/onnxruntime-genai: examples/python/model-qa.py."""
    import onnxruntime_genai as og

    config = og.Config(folder)
    config.clear_providers()
    model = og.Model(config)
    tokenizer = og.Tokenizer(model)
    stream = tokenizer.create_stream()
    prompt = tokenizer.apply_chat_template(json.dumps([{"role": "user", "content": text}]), add_generation_prompt=True)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=64)
    generator = og.Generator(model, params)
    generator.append_tokens(tokenizer.encode(prompt))
    written = ""
    while not generator.is_done():
        generator.generate_next_token()
        written += stream.decode(generator.get_next_tokens()[0])
    return written


def llama(folder: str, text: str) -> Any:
    """llama-cpp-python.readthedocs.io: High-level API, with the temperature by which it takes the most likely token."""
    from llama_cpp import Llama

    (path,) = Path(folder).glob("*.gguf")
    llm = Llama(model_path=str(path))
    return llm(text, temperature=0.0)["choices"][0]["text"]


def llama_chat(folder: str, text: str) -> Any:
    """The same page: Chat completion."""
    from llama_cpp import Llama

    (path,) = Path(folder).glob("*.gguf")
    llm = Llama(model_path=str(path))
    return llm.create_chat_completion(messages=[{"role": "user", "content": text}], temperature=0.0)["choices"][0]["message"]["content"]


def embed(folder: str, text: str) -> Any:
    """sbert.net: Quickstart."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder).encode([text])[0].tolist()


def embed_onnx(folder: str, text: str) -> Any:
    """sbert.net: Speeding up Inference, ONNX."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, backend="onnx").encode([text])[0].tolist()


def embed_openvino(folder: str, text: str) -> Any:
    """The same page: OpenVINO, in fp32."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, backend="openvino", model_kwargs={"ov_config": FP32}).encode([text])[0].tolist()


def main() -> None:
    """Write the answers."""
    answers = []
    for name, folder, text in json.loads(Path(sys.argv[1]).read_text()):
        program: Callable[[str, str], Any] = globals()[name]
        try:
            answers.append(program(folder, text))
        except Exception as error:  # what it raises is the answer
            answers.append({"raised": traceback.format_exception_only(error)[-1].strip(), "at": traceback.format_exc()[-1500:]})
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
