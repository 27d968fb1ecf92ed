"""Stands in for NVIDIA's TensorRT, whose engines need a GPU: an engine names its graph, and runs it by onnxruntime on its memory.

It has what `build.py` and `session.py` use of the library, and refuses what the library refuses: sizes beyond the profile, addresses that
were not set or whose memory is too small. STAND_IN_VERSION: "10.9" has the flags of precision, "11.4" has none. STAND_IN_NOISE is
added to the outputs. STAND_IN_REFUSES is the error with which an engine is refused.
"""

from __future__ import annotations

import ctypes
import json
import os
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import onnxruntime

__version__ = os.environ.get("STAND_IN_VERSION", "11.4")
_DRIVER = ctypes.CDLL(os.environ.get("STAND_IN_DRIVER", "libcuda.so.1"))
_DRIVER.stand_in_room.restype = ctypes.c_size_t
_DRIVER.stand_in_room.argtypes = [ctypes.c_uint64]
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


class ILogger:
    class Severity(IntEnum):
        INTERNAL_ERROR, ERROR, WARNING = range(3)

    def __init__(self) -> None:
        pass


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


BuilderFlag: Any = Enum("BuilderFlag", ["TF32", *(["FP16", "BF16"] if __version__.startswith("10") else [])])


class TensorIOMode(Enum):
    INPUT, OUTPUT = range(2)


def nptype(dtype: Any) -> Any:
    return dtype


def _opened(path: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class _Tensor:
    def __init__(self, port: Any) -> None:
        self.name, self.shape = port.name, tuple(-1 if isinstance(size, str) else size for size in port.shape)


class _Network:
    def __init__(self, flags: int) -> None:
        self.flags, self.path, self.num_layers = flags, "", 0

    def read(self, path: str) -> None:
        session = _opened(path)
        self.path, self.ports = path, (session.get_inputs(), session.get_outputs())
        self.num_inputs, self.num_outputs, self.num_layers = len(self.ports[0]), len(self.ports[1]), 7

    def get_input(self, place: int) -> _Tensor:
        return _Tensor(self.ports[0][place])

    def get_output(self, place: int) -> _Tensor:
        return _Tensor(self.ports[1][place])


class OnnxParser:
    def __init__(self, network: _Network, logger: ILogger) -> None:
        self._network, self._said, self.num_errors = network, "", 0

    def parse_from_file(self, path: str) -> bool:
        try:
            self._network.read(path)
        except Exception as error:
            self._said, self.num_errors = str(error), 1
            return False
        return True

    def get_error(self, place: int) -> Any:
        said = self._said
        return type("Error", (), {"desc": lambda self: said})()


class _Profile:
    def __init__(self) -> None:
        self.sizes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, name: str, *shapes: tuple[int, ...]) -> None:
        self.sizes[name] = list(shapes)


class _Cache:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def serialize(self) -> bytes:
        return self._content + b"measured;"


class _Config:
    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self.flags, self.profiles, self.cache = {"TF32"}, list[_Profile](), None

    def set_flag(self, flag: Any) -> None:
        self.flags.add(flag.name)

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag.name)

    def add_optimization_profile(self, profile: _Profile) -> int:
        if any(not all(a <= b <= c for a, b, c in zip(*shapes, strict=True)) for shapes in profile.sizes.values()):
            self._logger.log(ILogger.Severity.ERROR, "the profile is not valid")
            return -1
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, content: bytes) -> _Cache:
        return _Cache(content)

    def set_timing_cache(self, cache: _Cache, ignore_mismatch: bool) -> None:
        self.cache = cache


class Builder:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> _Network:
        return _Network(flags)

    def create_builder_config(self) -> _Config:
        return _Config(self._logger)

    def create_optimization_profile(self) -> _Profile:
        return _Profile()

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes:
        typed = bool(network.flags & 1 << NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        said = {"graph": network.path, "profiles": [one.sizes for one in config.profiles], "flags": sorted(config.flags), "typed": typed}
        return json.dumps(said).encode()


class Runtime:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, content: bytes) -> Any:
        if said := os.environ.get("STAND_IN_REFUSES"):
            self._logger.log(ILogger.Severity.ERROR, said)
            return None
        try:
            return _Engine(json.loads(content))
        except ValueError:
            self._logger.log(ILogger.Severity.ERROR, "the engine can't be read")
            return None


class _Engine:
    def __init__(self, said: dict[str, Any]) -> None:
        self.session = _opened(said["graph"])
        self.profiles = said["profiles"]
        self._ports = {one.name: one for one in (*self.session.get_inputs(), *self.session.get_outputs())}
        self._given = {one.name for one in self.session.get_inputs()}
        self.num_io_tensors, self.num_optimization_profiles = len(self._ports), max(1, len(self.profiles))

    def get_tensor_name(self, place: int) -> str:
        return list(self._ports)[place]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self._given else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return _DTYPES[self._ports[name].type]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return _Tensor(self._ports[name]).shape

    def get_tensor_profile_shape(self, name: str, number: int) -> list[list[int]]:
        fixed = [list(self.get_tensor_shape(name))] * 3
        return self.profiles[number].get(name, fixed) if self.profiles else fixed

    def create_execution_context(self) -> _Context:
        return _Context(self)


class _Context:
    def __init__(self, engine: _Engine) -> None:
        self._engine, self._profile = engine, 0
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, int] = {}

    def set_optimization_profile_async(self, number: int, stream: int) -> bool:
        self._profile = number
        return stream == 2

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        least, _, most = self._engine.get_tensor_profile_shape(name, self._profile)
        self._shapes[name] = tuple(shape)
        return all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def set_tensor_address(self, name: str, at: int) -> bool:
        self._places[name] = at
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name] if name in self._shapes else self._run(zeros=True)[name].shape

    def _run(self, *, zeros: bool) -> dict[str, np.ndarray]:
        feeds = {}
        for port in self._engine.session.get_inputs():
            shape, dtype = self._shapes[port.name], _DTYPES[port.type]
            feeds[port.name] = np.zeros(shape, dtype) if zeros else self._array(port.name, shape, dtype).copy()
        names = [one.name for one in self._engine.session.get_outputs()]
        return dict(zip(names, self._engine.session.run(names, feeds), strict=True))

    def _array(self, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if _DRIVER.stand_in_room(self._places[name]) < max(1, size):
            raise RuntimeError(f"the memory of {name} is too small")
        block = (ctypes.c_uint8 * size).from_address(self._places[name])
        return np.frombuffer(block, dtype).reshape(shape)

    def execute_async_v3(self, stream: int) -> bool:
        for name, array in self._run(zeros=False).items():
            noise = np.float32(os.environ.get("STAND_IN_NOISE", "0"))
            self._array(name, array.shape, array.dtype)[...] = array + noise.astype(array.dtype)
        return stream == 2
