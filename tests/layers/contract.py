"""A contract of import-linter in which one layer stands for the folders of all formats, so that a new format needs no line in the law."""

from __future__ import annotations

from dataclasses import replace

import grimp
from importlinter.contracts.layers import LayersContract, ModuleTail
from importlinter.domain.contract import ContractCheck

FORMATS = "FORMATS"


class LayersWithFormats(LayersContract):
    """Layers below `handlers`; in FORMATS is every folder with a `format.py` that no other layer names."""

    type_name = "layers_with_formats"

    def check(self, graph: grimp.ImportGraph, verbose: bool) -> ContractCheck:
        """Put the folders in the place of FORMATS, then check the layers."""
        named = {tail.name for layer in self.layers for tail in layer.module_tails}
        folders = [module for module in graph.find_children("handlers") if f"{module}.format" in graph.modules]
        formats = {ModuleTail(name) for folder in folders if (name := folder.rpartition(".")[2]) not in named}
        self.layers = [
            replace(layer, module_tails=formats) if ModuleTail(FORMATS) in layer.module_tails else layer for layer in self.layers
        ]
        return super().check(graph, verbose)
