"""Opens the engines of a folder on the GPU, and runs them by the names of inputs and outputs, in the manner of onnxruntime's sessions.

It lies in the folder itself, beside `example.py`, `build.py` and `verify.py`, which use it. Engines need NVIDIA's driver, numpy, and the
library that they were built with: TensorRT (the module `tensorrt`) or TensorRT-RTX (`tensorrt_rtx`). Where the folder has no engines yet,
its graphs are run by onnxruntime. Arrays go to the GPU and come back at every call: simple and exact, not the fastest way to serve.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ENGINES, ENDING, BUILT = "engines", ".engine", "built.json"
LIBRARIES = ("tensorrt", "tensorrt_rtx")
DRIVER = "libcuda.so.1"
_OTHER_GPU = ("compute capability", "incompatible device")
"""Of these the errors speak by which TensorRT-RTX and TensorRT refuse an engine that is for other GPUs."""
_CAPABILITY = (75, 76)
"""The driver's numbers of the two halves of a GPU's compute capability."""
_TYPES = {"int64": "int64", "int32": "int32", "float32": "float", "float16": "float16", "bool": "bool"}


class Refused(Exception):
    """What can't be done here; the message is a sentence."""


class NoDeviceError(Refused):
    """This machine has no GPU that engines run on."""


@dataclass(frozen=True)
class Port:
    """One input or output; `shape` has None for dynamic axes."""

    name: str
    type: str
    shape: tuple[int | None, ...]


def library(name: str = "") -> Any:
    """TensorRT's module, by default the first of `LIBRARIES` that is installed."""
    for module in (name,) if name else LIBRARIES:
        try:
            return importlib.import_module(module)
        except ImportError:
            continue
    raise Refused(
        f"{name or 'TensorRT'} is not installed in this Python ({sys.executable}): `pip install {name or 'tensorrt'}` installs it."
    )


def logger(trt: Any) -> Any:
    """A logger of the library that prints nothing and keeps its last errors in `said`."""

    class Kept(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.said: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.said = [*self.said[-9:], " ".join(message.split())[:400]]

        def reason(self) -> str:
            """The first of the last errors: what follows it is about the missing driver, or about what did not come about."""
            return self.said[0] if self.said else "it does not say why"

    return Kept()


class Gpu:
    """The first GPU, by the functions of NVIDIA's driver that are needed here. Raises NoDeviceError where there is none."""

    def __init__(self) -> None:
        try:
            self._driver = ctypes.CDLL(DRIVER)
        except OSError:
            raise NoDeviceError(
                f"This machine has no NVIDIA driver ({DRIVER} can't be loaded): engines run on NVIDIA's GPUs alone."
            ) from None
        if self._driver.cuInit(0) != 0:
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
            raise NoDeviceError(
                "CUDA_VISIBLE_DEVICES hides the GPUs of this machine from this program, if it has any."
                if hidden else "NVIDIA's driver finds no GPU on this machine."
            )  # fmt: skip
        device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(stream), 0)
        self.stream = int(stream.value or 0)
        name = ctypes.create_string_buffer(100)
        self._call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()
        self._device = device

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code != 0:
            raise Refused(f"The GPU's driver refuses {name} with error {code}.")

    @property
    def capability(self) -> str:
        """Its compute capability: "8.9"."""
        halves = [ctypes.c_int() for _ in _CAPABILITY]
        for half, number in zip(halves, _CAPABILITY, strict=True):
            self._call("cuDeviceGetAttribute", ctypes.byref(half), number, self._device)
        return ".".join(str(half.value) for half in halves)

    def allocate(self, size: int) -> int:
        """Memory of so many bytes, at least one: an empty tensor needs an address too."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, size)))
        return int(pointer.value)

    def free(self, pointer: int) -> None:
        """Give memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def upload(self, pointer: int, array: np.ndarray) -> None:
        """Copy a contiguous array to the GPU."""
        if array.nbytes:
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes))

    def download(self, array: np.ndarray, pointer: int) -> None:
        """Copy what lies on the GPU into a contiguous array."""
        if array.nbytes:
            self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(pointer), ctypes.c_size_t(array.nbytes))

    def wait(self) -> None:
        """Until all that was asked of it is done."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))


@functools.cache
def gpu() -> Gpu:
    """The first GPU, opened once."""
    return Gpu()


class Session:
    """One engine. Takes and gives numpy arrays; each call uses the first of the engine's profiles that its shapes fit into."""

    def __init__(self, path: str | Path, trt: Any = None) -> None:
        self.path = Path(path)
        self._trt = trt or library(built(self.path.parent).get("library", ""))
        self._gpu = gpu()
        kept = logger(self._trt)
        self._runtime = self._trt.Runtime(kept)
        self._engine = self._runtime.deserialize_cuda_engine(self.path.read_bytes())
        if self._engine is None:
            self._refuse_other_gpu(kept.reason())
            raise Refused(
                f"{self._trt.__name__} {self._trt.__version__} can't open {self.path.name} on {self._gpu.name}; an engine is for the"
                f" release and the kind of GPU that it was built for, so build it again ({kept.reason()})."
            )
        names = [self._engine.get_tensor_name(place) for place in range(self._engine.num_io_tensors)]
        given = [name for name in names if self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT]
        self._types = {name: np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name))) for name in names}
        self._inputs = [self._port(name) for name in given]
        self._outputs = [self._port(name) for name in names if name not in given]
        self._contexts: dict[int, Any] = {}
        self._places: dict[str, tuple[int, int]] = {}
        """Tensor → (address, bytes) on the GPU; grows with what is asked."""

    def _refuse_other_gpu(self, said: str) -> None:
        """Raises NoDeviceError where an engine is sound, and is for other GPUs than this one."""
        if not any(words in said for words in _OTHER_GPU):
            return
        number = self._gpu.capability
        listed = getattr(self._trt, "ComputeCapability", None)  # TensorRT has no list: it builds for the GPU that it finds
        known = listed is None or hasattr(listed, f"SM{number.replace('.', '')}")
        remedy = "build it again for this one" if known else "this release has none for this one, for which TensorRT itself may have some"
        raise NoDeviceError(
            f"{self.path.name} is for other GPUs than {self._gpu.name} (compute capability {number}): {remedy}"
            f" ({self._trt.__name__} {self._trt.__version__} says: {said})."
        )

    def _port(self, name: str) -> Port:
        shape = tuple(None if size < 0 else int(size) for size in self._engine.get_tensor_shape(name))
        return Port(name, f"tensor({_TYPES.get(self._types[name].name, self._types[name].name)})", shape)

    def get_inputs(self) -> list[Port]:
        """In the engine's order."""
        return self._inputs

    def get_outputs(self) -> list[Port]:
        """In the engine's order."""
        return self._outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for, all if `names` is None. Raises Refused for shapes beyond the profiles that it was built with."""
        arrays = {port.name: np.ascontiguousarray(feeds[port.name], self._types[port.name]) for port in self._inputs}
        context = self._context(self._profile({name: array.shape for name, array in arrays.items()}))
        for name, array in arrays.items():
            if not context.set_input_shape(name, array.shape):
                raise Refused(f"{self.path.name} does not take the shape {array.shape} for {name}.")
            pointer = self._place(name, array.nbytes)
            self._gpu.upload(pointer, array)
            context.set_tensor_address(name, pointer)
        outputs = {}
        for port in self._outputs:
            shape = tuple(context.get_tensor_shape(port.name))
            if min(shape, default=0) < 0:
                raise Refused(f"The size of the output {port.name} of {self.path.name} depends on its data, which is not supported here.")
            outputs[port.name] = np.empty(shape, self._types[port.name])
            context.set_tensor_address(port.name, self._place(port.name, outputs[port.name].nbytes))
        if not context.execute_async_v3(self._gpu.stream):
            raise Refused(f"{self.path.name} could not be run on {self._gpu.name}.")
        self._gpu.wait()
        for name, array in outputs.items():
            self._gpu.download(array, self._places[name][0])
        return [outputs[name] for name in (outputs if names is None else names)]

    def _profile(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        for number in range(self._engine.num_optimization_profiles):
            if all(self._fits(name, shape, number) for name, shape in shapes.items()):
                return number
        raise Refused(
            f"No profile of {self.path.name} takes the shapes {', '.join(f'{name} {shape}' for name, shape in list(shapes.items())[:4])};"
            " profiles.json says which sizes it was built for."
        )

    def _fits(self, name: str, shape: tuple[int, ...], number: int) -> bool:
        least, _, most = (tuple(shape) for shape in self._engine.get_tensor_profile_shape(name, number))
        return len(shape) == len(least) and all(low <= size <= high for low, size, high in zip(least, shape, most, strict=True))

    def _context(self, profile: int) -> Any:
        if profile not in self._contexts:
            context = self._engine.create_execution_context()
            if context is None or not context.set_optimization_profile_async(profile, self._gpu.stream):
                raise Refused(f"{self.path.name} can't be prepared on {self._gpu.name}; its memory may be too small.")
            self._gpu.wait()
            self._contexts[profile] = context
        return self._contexts[profile]

    def _place(self, name: str, size: int) -> int:
        pointer, room = self._places.get(name, (0, -1))
        if room < size:
            if pointer:
                self._gpu.free(pointer)
            self._places[name] = pointer, room = self._gpu.allocate(size), size
        return pointer


class OrtSession:
    """One graph, run by onnxruntime on the CPU."""

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # what goes wrong is raised
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def get_inputs(self) -> list[Port]:
        """In the graph's order."""
        return self._session.get_inputs()  # type: ignore[no-any-return]

    def get_outputs(self) -> list[Port]:
        """In the graph's order."""
        return self._session.get_outputs()  # type: ignore[no-any-return]

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for, all if `names` is None."""
        return self._session.run(names, dict(feeds))  # type: ignore[no-any-return]


class Decoders:
    """An encoder-decoder's two decoders as the one that onnxruntime's folders have: `use_cache_branch` says whether there is a cache."""

    def __init__(self, first: Session | OrtSession, later: Session | OrtSession) -> None:
        self._first, self._later = first, later

    def get_inputs(self) -> list[Port]:
        """Those of both, and which of them is meant."""
        named = {port.name: port for port in (*self._first.get_inputs(), *self._later.get_inputs())}
        return [*named.values(), Port("use_cache_branch", "tensor(bool)", (1,))]

    def get_outputs(self) -> list[Port]:
        """Those of the first step."""
        return self._first.get_outputs()

    def run(self, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for. What the later decoder only reads, the encoder's part of the cache, it gives back as it is."""
        session = self._later if feeds["use_cache_branch"].any() else self._first
        own = [port.name for port in session.get_outputs()]
        outputs = dict(zip(own, session.run(own, {port.name: feeds[port.name] for port in session.get_inputs()}), strict=True))
        return [outputs[name] if name in outputs else feeds[name.replace("present", "past_key_values", 1)] for name in names]


def built(engines: Path) -> dict[str, str]:
    """What the folder of engines says of how they were built; {} where none were."""
    path = engines / BUILT
    said: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if said.get("library") == "trtexec":
        said = {**said, "library": "tensorrt"}
    return said


def opened(folder: Path, name: str) -> Session | OrtSession | Decoders:
    """What stands for an ONNX graph, by the name that the graph has: its engine where one was built, otherwise the graph itself."""
    stem = Path(name).stem
    if stem == "decoder_model_merged":
        return Decoders(*(_session(folder, part) for part in ("decoder_model", "decoder_with_past_model")))
    return _session(folder, stem)


def _session(folder: Path, stem: str) -> Session | OrtSession:
    engine = folder / ENGINES / f"{stem}{ENDING}"
    if engine.is_file():
        return Session(engine)
    print(f"There is no {ENGINES}/{engine.name} yet: onnxruntime runs {stem}.onnx on the CPU instead.", file=sys.stderr)
    return OrtSession(folder / f"{stem}.onnx")
