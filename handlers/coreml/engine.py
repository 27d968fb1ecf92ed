"""The engines of Core ML's folders. On a Mac Core ML runs them, elsewhere they are evaluated operator by operator. Run inside the toolchain
`coreml`."""

from __future__ import annotations

from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.coreml import comparison
from handlers.coreml.evaluation.blobs import Unreadable
from handlers.coreml.session import Session, opened
from handlers.static_programs.engine import AGAIN, OPERATION, StaticCausal, StaticEncoder, StaticFolder, StaticSeq2Seq
from handlers.validate.engines.registry import EngineSpec


class _Packages(StaticFolder):
    def _opened(self, path: Path, role: str, threads: int) -> Session:
        try:
            return opened(path, self._described.graph(role))
        except Unreadable as error:
            raise Permanent(FaultCode.ENGINE, OPERATION, str(error), AGAIN, path=path) from error

    @staticmethod
    def weights_difference(spec: EngineSpec, merged: Path) -> str | None:
        """Why its weights are not those of the merged model, as a clause; None where they are. Nothing is evaluated for it."""
        return comparison.difference(Path(spec.folder), merged)


class CoreMlCausal(_Packages, StaticCausal):
    """A language model."""


class CoreMlSeq2Seq(_Packages, StaticSeq2Seq):
    """An encoder-decoder."""


class CoreMlEncoder(_Packages, StaticEncoder):
    """An encoder, with or without a head."""
