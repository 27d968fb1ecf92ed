"""Probe of the toolchain `tensorrt-rtx`: TensorRT-RTX builds an engine with a dynamic size, without a GPU. Runs inside."""

from __future__ import annotations

import argparse

from handlers.toolchains import inside


def probe(options: argparse.Namespace) -> inside.Probed:
    """Build the engine of a sum. Raises whatever is wrong."""
    import onnxruntime  # noqa: F401
    import tensorrt_rtx as trt
    import tokenizers  # noqa: F401

    from handlers.tensorrt.box import session

    kept = session.logger(trt)
    builder = trt.Builder(kept)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    value = network.add_input("a", trt.float32, (-1,))
    network.mark_output(network.add_elementwise(value, value, trt.ElementWiseOperation.SUM).get_output(0))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    profile.set_shape("a", (0,), (4,), (8,))
    config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None or not trt.OnnxParser(builder.create_network(0), kept):
        raise RuntimeError(f"TensorRT-RTX builds no engine: {kept.reason()}")
    return inside.Probed(inside.versions(("tensorrt_rtx", "onnxruntime", "tokenizers")))


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
