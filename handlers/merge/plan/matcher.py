"""Matching an adapter to its base: what the merge does to each tensor, and whether it can be streamed at all.

Called by `handlers.merge.plan.prepare`. Every key of the adapter ends in the plan or in an error; a case that streaming does not support
raises `NeedsPeft` with the reason. Only headers are read; when names don't match or weights may be tied, the model's structure is built
without weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import TensorInfo
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.changes import Change, gather
from handlers.merge.adapters.keys import parse
from handlers.merge.adapters.name_mapping import OPERATION, Names, NeedsPeft, choose_names, nothing_matches, wrong_shape
from handlers.merge.adapters.patterns import named
from handlers.merge.adapters.separate_experts import holder_of
from handlers.merge.plan.fused_experts import expert_outputs
from handlers.merge.plan.low_rank import low_rank
from handlers.merge.plan.operations import Bias, Operation
from handlers.merge.plan.output_layout import Output
from handlers.merge.plan.replacements import replaced, rows_of_tokens
from handlers.merge.plan.task_heads import Head, new_head
from handlers.merge.plan.tied_weights import TensorChange, tensor_changes
from handlers.merge.weights.unpacked_base import UnpackedBase, header_dtype
from handlers.models.files import Edits

MOVED = (".block_sparse_moe.", ".mlp.")
"""Part of a path in files and adapters of transformers 4, and what transformers 5 calls it."""
STREAMED_DTYPES = ("F32", "F16", "BF16")
PLAIN_INITIALIZERS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it is, so that the initializer does not matter after training."""
LOST_INITIALIZERS = {
    "lora_ga": "LoRA-GA moved the base's weights by gradients of the training data",
    "corda": "CorDA moved the base's weights by statistics of the training data",
}
"""Initializers that changed the base in a way that neither the adapter nor PEFT can repeat."""
NEUTRAL = frozenset({
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "r",
    "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "use_rslora", "layers_to_transform",
    "layers_pattern", "rank_pattern", "alpha_pattern", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config",
    "bias", "init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "use_dora", "modules_to_save",
    "lora_bias", "trainable_token_indices", "target_parameters",
    # AdaLoRA's schedule
    "target_r", "init_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step",
})  # fmt: skip
"""Keys of adapter_config.json that streaming supports or that do not affect the merge."""


@dataclass
class Matched:
    """The outputs of a merge, and the keys of config.json that have to change with them."""

    outputs: list[Output]
    edits: Edits = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _check_configuration(adapter: Adapter) -> None:
    """Raise NeedsPeft when adapter_config.json sets what streaming does not support, Permanent when PEFT can't do it either."""
    config = adapter.config
    if adapter.method not in ("LORA", "ADALORA"):
        raise NeedsPeft(f"the method is {adapter.method}, not LoRA")
    initializer = config.get("init_lora_weights")
    if initializer in LOST_INITIALIZERS:
        raise Permanent(
            FaultCode.ADAPTER_NOT_MERGEABLE,
            OPERATION,
            f"{LOST_INITIALIZERS[str(initializer)]}, which the adapter does not hold",
            "save the adapter with path_initial_model_for_weight_conversion, which turns it into a plain LoRA",
            path=adapter.folder,
        )
    if initializer not in PLAIN_INITIALIZERS:
        raise NeedsPeft(f"the initializer {initializer} changes the base before the adapter is added")
    unknown = sorted(key for key, value in config.items() if value and key not in NEUTRAL)
    if unknown:
        raise NeedsPeft(f"adapter_config.json sets {', '.join(unknown)}")


class _Matcher:
    """The state of one match."""

    def __init__(self, adapter: Adapter, base: UnpackedBase) -> None:
        self.adapter, self.base, self.model, self.stored = adapter, base, base.model, base.tensors
        self.names = Names(self.stored)
        self.changed: dict[str, Output] = {}
        self.low_rank: list[tuple[Change, str, Output]] = []
        """Low-rank changes, whose operations are made when all are known."""
        self.edits: Edits = {}
        self.warnings: list[str] = []
        self.resized: tuple[int, int] | None = None

    def run(self) -> Matched:
        """Return the plan."""
        keys = parse(self.adapter.shapes)
        if len(keys.adapters) > 1:
            raise NeedsPeft(f"the file holds several adapters: {', '.join(sorted(keys.adapters))}")
        certain = [f"{module}.weight" for module, _ in keys.factors]
        self.names = choose_names(certain, self.stored)
        for output in expert_outputs(self.adapter, keys, self.names, self.model, self._expert):
            self.changed[output.name] = output
        changes = gather(self.adapter, keys)
        head = self._head(changes)
        for change in tensor_changes(self.adapter, self.model, self.names, changes, self._unmatched):
            self._add(change)
            self.edits.update(change.edits)
            self.warnings.extend(change.warnings)
        self._add_low_rank()
        self._check_resized()
        self._check_untouched()
        self._check_named(keys.tokens)
        kept = [self._copied(name, info) for name, info in self.stored.items() if name not in self.changed and name not in head.drop]
        self.edits.update(head.edits)
        self.warnings.extend(head.warnings)
        return Matched([*kept, *self.changed.values()], self.edits, self.warnings)

    def _head(self, changes: dict[str, Change]) -> Head:
        """Return a head that the base does not have, if the adapter brings one: it becomes outputs, and its changes are removed."""
        missing = {name: change for name, change in changes.items() if change.saved and self.names.info(name) is None}
        head = new_head(self.adapter, self.model, self.names, missing, self._unmatched) if missing else Head()
        for name in head.added:
            change = changes.pop(name)
            tensor, key = self.names.tensor(name), str(change.saved)
            added = Output(tensor, self._last_file(), self._dtype(), self.adapter.shapes[key], module=change.module)
            self.changed[tensor] = replaced(self.adapter, key, added)
        return head

    def _last_file(self) -> str:
        return max(info.file for info in self.stored.values())

    def _dtype(self) -> str:
        """Return the dtype of added tensors: that of most of the base's elements."""
        sizes: dict[str, int] = {}
        for name, info in self.stored.items():
            dtype = self._target_dtype(name, info)
            sizes[dtype] = sizes.get(dtype, 0) + info.elements
        return max((dtype for dtype in sizes if dtype in STREAMED_DTYPES), key=lambda dtype: sizes[dtype], default="F32")

    def _target_dtype(self, name: str, info: TensorInfo) -> str:
        return header_dtype(self.base.sources[name].dtype) if name in self.base.sources else info.dtype

    def _copied(self, name: str, info: TensorInfo) -> Output:
        dtype = self._target_dtype(name, info)
        return Output(name, info.file, dtype, info.shape, info, source=self.base.sources.get(name))

    def _expert(self, name: str, info: TensorInfo, module: str, operation: Operation) -> Output:
        self._check_dtype(name, info)
        return replace(self._copied(name, info), operation=operation, module=module)

    def _check_dtype(self, name: str, info: TensorInfo) -> None:
        if self._target_dtype(name, info) not in STREAMED_DTYPES:
            raise NeedsPeft(f"{name} is stored as {info.dtype} with {len(info.shape)} dimensions")

    def _add(self, tensor_change: TensorChange) -> None:
        """Make the output for a change: the stored tensor, or a new one with a copy of the weight with which it was tied."""
        change, info = tensor_change.change, tensor_change.info
        self._check_dtype(tensor_change.tensor, info)
        output = replace(self._copied(tensor_change.stored, info), name=tensor_change.tensor, module=change.module)
        key = change.saved or change.base or tensor_change.base
        if key is not None:
            output = replaced(self.adapter, key, replace(output, stored=info if tensor_change.tensor == tensor_change.stored else None))
            self._check_replaced(change, output, info)
        if change.tokens:
            if change.factors:
                raise NeedsPeft(f"{change.module} has trained tokens and low-rank factors at once")
            output = replace(output, operation=rows_of_tokens(self.adapter, change, output.shape))
        elif change.bias:
            output = replace(output, operation=Bias(change.bias, change.scale))
        elif change.factors:
            self.low_rank.append((change, tensor_change.tensor, output))
        if output.computed or tensor_change.tensor != tensor_change.stored or change.factors:
            self.changed[tensor_change.tensor] = output

    def _check_replaced(self, change: Change, output: Output, info: TensorInfo) -> None:
        if output.shape == info.shape:
            return
        vocabulary = self.model.setting("vocab_size")
        same_rest = len(output.shape) == len(info.shape) and output.shape[1:] == info.shape[1:]
        of_vocabulary = len(info.shape) == 2 or (len(info.shape) == 1 and change.parameter.endswith(".bias"))  # Phi's head has a bias
        if same_rest and of_vocabulary and info.shape[0] >= (vocabulary or 0) > 0:
            self.resized = (info.shape[0], output.shape[0])
            self.edits["vocab_size"] = output.shape[0]
            return
        raise wrong_shape(self.adapter, change.module, info.shape, f"the adapter saved it as {' × '.join(map(str, output.shape))}")

    def _add_low_rank(self) -> None:
        """The operations of the low-rank changes, once all are known: square weights are oriented as the others of the model."""
        operations = low_rank(self.adapter, self.model, [(change, output.shape) for change, _, output in self.low_rank])
        for (_, tensor, output), operation in zip(self.low_rank, operations, strict=True):
            if operation is not None:
                self.changed[tensor] = replace(output, operation=operation)
            elif not output.computed:
                self.changed.pop(tensor)

    def _check_resized(self) -> None:
        """Raise NeedsPeft when another tensor of the model has the size of the old vocabulary."""
        if self.resized is None:
            return
        old, new = self.resized
        left = [n for n, info in self.stored.items() if n not in self.changed and info.shape and old in (info.shape[0], info.shape[-1])]
        if left and old != new:
            raise NeedsPeft(f"the vocabulary was resized from {old} to {new}, and {left[0]} must be resized too")

    def _unmatched(self, missing: list[str]) -> Exception:
        """Return the error for modules that the model does not have; NeedsPeft for those that it has, but stores under other names."""
        from handlers.merge.weights.model_structure import module_names

        names = module_names(self.model)
        if names is not None and all({module, module.replace(*MOVED), holder_of(module)} & names for module in missing):
            return NeedsPeft(f"the base stores the weights of {missing[0]} under another name")
        return nothing_matches(self.adapter, missing, names or {name.removesuffix(".weight") for name in self.stored})

    def _unchanged(self, what: str) -> Permanent:
        return Permanent(
            FaultCode.BASE_WEIGHT_UNCHANGED,
            OPERATION,
            what,
            f"check that the base is the one the adapter was trained on, which it names {self.adapter.base_name}",
            path=self.adapter.folder,
        )

    def _check_untouched(self) -> None:
        """Raise Permanent when target_modules names a layer of the base for which the adapter has no weights."""
        config = self.adapter.config
        if config.get("exclude_modules") or config.get("layers_to_transform") is not None or config.get("target_modules") is None:
            return
        left = []
        for name, info in self.stored.items():
            module = self.names.parameter(name).removesuffix(".weight")
            if name.endswith(".weight") and name not in self.changed and len(info.shape) >= 2:
                left.append(module)
        named_left = named(config["target_modules"], left, "target_modules", self.adapter.folder)
        if not named_left:
            return
        from handlers.merge.weights.model_structure import module_names

        # A file may hold layers that the model never builds, or experts that it fuses: only what is a module counts.
        pruned = {name for name, ranks in (config.get("rank_pattern") or {}).items() if isinstance(ranks, list) and not any(ranks)}
        real = sorted(layer for layer in named_left & (module_names(self.model) or frozenset()) if f"{layer}.lora_E" not in pruned)
        if real:
            raise self._unchanged(
                f"target_modules names {len(real)} layers of the base for which the adapter has no weights, for example {real[0]}"
            )

    def _check_named(self, tokens: Mapping[str, str]) -> None:
        """Raise Permanent when the configuration names saved modules, tokens or parameters that the weights do not contain."""
        config = self.adapter.config
        keys = " ".join(f".{key}" for key in self.adapter.shapes)
        saved = config.get("modules_to_save")
        if saved and not any(f".{name}." in keys for name in saved):
            raise self._unchanged(f"modules_to_save names {', '.join(saved[:5])}, but the adapter has no weights of them")
        if config.get("trainable_token_indices") and not tokens:
            raise self._unchanged("trainable_token_indices names tokens, but the adapter has no rows of them")
        for target in config.get("target_parameters") or ():
            holder = str(target).rpartition(".")[0]
            # For "all-linear" PEFT names the router of every mixture so, and leaves out what the model does not have.
            if str(target).endswith(".weight") and not any(f".{self.names.parameter(name)}".endswith(f".{target}") for name in self.stored):
                continue
            if holder and f".{holder}.lora_A" not in keys and f".{holder}.base_layer.lora_A" not in keys:
                raise self._unchanged(f"target_parameters names {target}, but the adapter has no weights of it")


def match(adapter: Adapter, base: UnpackedBase) -> Matched:
    """Return the outputs of a streaming merge: all tensors, changed, replaced, added or copied, with every key of the adapter used.

    Raises NeedsPeft for a case that streaming does not support, and Permanent, with the figures, when adapter and base do not belong
    together.
    """
    _check_configuration(adapter)
    return _Matcher(adapter, base).run()
