"""What of the daemon's environment its children get: an allow-list, since the rest may hold keys, tokens and the URLs of notifications.

Called by the executors of attempts and by deliveries. A child reads files of trainers with large libraries; what it does not have, neither
it nor a crash of it can give away.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from daemon.contract.disk.failpoints import VARIABLES

NAMES = frozenset({
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "NO_COLOR", "PATH", "TEMP", "TERM", "TMP", "TMPDIR", "TZ",
    "USER", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
    "HF_HOME", "HF_ASSETS_CACHE", "HF_MODULES_CACHE", "HUGGINGFACE_HUB_CACHE", "TOKENIZERS_PARALLELISM", "CUBLAS_WORKSPACE_CONFIG",
    "CONDA_PREFIX", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GLIBC_TUNABLES", "USE_TORCH", "SAFETENSORS_FAST_GPU", "GPU_DEVICE_ORDINAL",
    *VARIABLES,
})  # fmt: skip
"""Variables that children get."""
PREFIXES = (
    "LC_", "PYTHON", "SSL_CERT_", "HF_HUB_", "HF_DATASETS_", "HF_XET_", "TRANSFORMERS_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_",
    "PYTORCH_", "TRITON_", "BNB_", "BITSANDBYTES_", "CUDA_", "CUDNN_", "NVIDIA_", "NCCL_", "ROCR_", "ROCM_", "HIP_", "HSA_", "MIOPEN_",
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "RAYON_", "ATEN_", "DNNL_", "ONEDNN_", "OPENVINO_", "ORT_",
    "MALLOC_", "MIMALLOC_", "RUST_",
)  # fmt: skip
"""Beginnings of names of variables that children get, unless one of `_SECRET` is in the name."""
_NOT = frozenset({"PYTHONWARNINGS", "PYTHONINSPECT"})
"""For whoever works on a program: a warning of a library would end a stage, or its process not end at all."""
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


FIXED = {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8", "PYDANTIC_DISABLE_PLUGINS": "__all__"}
"""What every child gets beside it: libraries read templates and print texts in the encoding of the locale, whatever that is. To look for
plugins of pydantic, of which we use none, each child would read the metadata of all packages."""


def for_children(environment: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """What of `environment` a child gets. `more`: names that the configuration adds (`limits.pass_environment`), whatever they are."""
    return {name: value for name, value in environment.items() if name in NAMES or name in more or _is_harmless(name)}


def _is_harmless(name: str) -> bool:
    return name.startswith(PREFIXES) and name not in _NOT and not _SECRET.search(name)
