"""What PyTorch's own parallelism runs of transformers, and which program predicts it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from dse._torch import load_torch
from dse.machine import Precision
from dse.validation._protocol import Trainer, UnsupportedCandidateError
from dse.validation.trainer.pytorch._rank import PyTorchRank
from dse.validation.transformer import TransformerCandidate, untrained
from dse.workload import find_program
from dse.workload.transformer import TRANSFORMER_PROGRAMS, TransformerWorkload

if TYPE_CHECKING:
    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions

#: Arithmetic of each device.
_PRECISIONS = {
    "cpu": (Precision.FP32, Precision.BF16),
    "cuda": (Precision.FP32, Precision.TF32, Precision.BF16),
}


class PyTorchTrainer(Trainer[TransformerCandidate]):
    """Trains dense decoders under data, sharded data and tensor parallelism with torch alone."""

    name: ClassVar[str] = "pytorch"
    title: ClassVar[str] = "PyTorch's own parallelism"
    kind: ClassVar[str] = TransformerWorkload.kind
    program: ClassVar[str] = "pytorch"
    keeps: ClassVar[str] = "the precision of gradients"
    collects: ClassVar[bool] = True

    def adopt(self, candidate: TransformerCandidate) -> TransformerCandidate:
        """Returns the candidate as this program, with gradients in the precision they have."""
        own = candidate.problem
        program = find_program(TRANSFORMER_PROGRAMS, self.program)
        software = program.software_for(on_cpu=own.cluster.device.kind == "cpu")
        software = replace(software, gradient_bytes=own.gradient_bytes)
        return replace(candidate, problem=replace(own, software=software, program=self.program))

    def checked(self, candidate: TransformerCandidate, device: str) -> TransformerCandidate:
        """Returns the candidate.

        Raises:
            UnsupportedCandidateError: The trainer has no network for a part of the model, does not
                spread it in this way, or lacks the arithmetic.
        """
        where, job = f"candidate `{candidate.name}`", candidate.problem
        what, instead = untrained(candidate)
        if what:
            raise UnsupportedCandidateError(f"{where}: real runs have no {what}; {instead}")
        if job.precision not in _PRECISIONS[device]:
            known = ", ".join(_PRECISIONS[device])
            raise UnsupportedCandidateError(
                f"{where}: {self.title} does not train in {job.precision} on {device}; choose "
                f"`precision` among {known}"
            )
        return candidate

    def rank(
        self, candidate: TransformerCandidate, options: TrainerOptions, context: RankContext
    ) -> PyTorchRank:
        """Builds one rank."""
        return PyTorchRank(load_torch(), candidate, options, context)
