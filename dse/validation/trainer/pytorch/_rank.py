"""One rank of a transformer, spread by the module that `dse export --format fsdp` writes.

The module's `parallelize` wraps the network, and its `train_step` takes the micro-batches, so what
is measured is what is exported: DDP for whole replicas in FP32, else FSDP2 on a mesh of replicas
and shards, and plans of tensor parallelism.
"""

from __future__ import annotations

from pathlib import Path
import runpy
import tempfile
from typing import TYPE_CHECKING, Any
import warnings

from dse.machine import Precision
from dse.model import Optimizer
from dse.validation._protocol import WeightPiece
from dse.validation.transformer import loss_of, make_batch, make_network
from dse.workload.transformer import DEPLOY_FORMATS

if TYPE_CHECKING:
    from dse.launch import RankContext
    from dse.validation._types import TrainerOptions
    from dse.validation.transformer import TransformerCandidate
    from dse.workload.transformer import TransformerJob

#: Parts of the names of weights that wrappers add.
_WRAPPERS = ("_checkpoint_wrapped_module.", "module.")


class PyTorchRank:
    """One rank of one candidate.

    Args:
        torch: The torch module.
        candidate: Checked candidate.
        options: Seed, learning rate, batches.
        context: This rank and its device.
    """

    def __init__(
        self,
        torch: Any,
        candidate: TransformerCandidate,
        options: TrainerOptions,
        context: RankContext,
    ) -> None:
        self._torch, self._context = torch, context
        job = candidate.problem
        kind = "cpu" if context.device == "cpu" else "cuda"
        if kind == "cuda":
            tf32 = job.precision is Precision.TF32
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
        dtype = torch.float64 if options.double else torch.float32
        network = make_network(torch, job.model, options.seed, dtype, context.device)
        module = _exported(job, double=options.double)
        self._model = module["parallelize"](network, kind)
        self._train_step = module["train_step"]
        self._optimizer = _optimizer(torch, job, self._model, options)
        spread = job.parallelism
        own = slice(context.rank // spread.tensor, None, spread.data)
        batches = [
            make_batch(torch, job.model, options.seed, number, job.global_batch_size)[own]
            for number in range(options.batches)
        ]
        self._batches = [
            batch.to(context.device).split(spread.micro_batch_size) for batch in batches
        ]
        self._number = 0

    def step(self) -> Any:
        """Trains one iteration; returns the mean loss of this rank's samples before the update."""
        losses = []

        def recorded(model: Any, batch: Any) -> Any:
            loss = loss_of(model, batch)
            losses.append(loss.detach())
            return loss

        batch = self._batches[self._number % len(self._batches)]
        self._number += 1
        self._train_step(self._model, batch, recorded, self._optimizer)
        return sum(_whole(loss) for loss in losses) / len(losses)

    def weights(self) -> list[WeightPiece]:
        """Returns all weights on rank 0, gathered from all ranks."""
        found = []
        for name, parameter in self._model.named_parameters():
            for part in _WRAPPERS:
                name = name.replace(part, "")
            whole = _whole(parameter.detach()).to("cpu", self._torch.float64).numpy()
            found.append(WeightPiece(name, whole.shape, (0,) * whole.ndim, whole))
        return found if self._context.rank == 0 else []

    def close(self) -> None:
        """Frees the network; torch keeps the process groups of equal meshes for the next one."""
        del self._model, self._optimizer, self._train_step


def _exported(job: TransformerJob, *, double: bool) -> dict[str, Any]:
    """Returns the names of the exported module; in double precision nothing is cast."""
    text = DEPLOY_FORMATS["fsdp"].write(job)
    if double:
        text = text.replace("torch.float32", "torch.float64")
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spread.py"
        path.write_text(text)
        return runpy.run_path(str(path))


def _optimizer(torch: Any, job: TransformerJob, model: Any, options: TrainerOptions) -> Any:
    rate = options.dense_learning_rate
    every = list(model.parameters())
    # Fused updates take parameters that are spread and those that are not in calls of their own.
    groups = [[one for one in every if _is_spread(one) is spread] for spread in (True, False)]
    parameters = [{"params": group} for group in groups if group]
    if job.model.optimizer is Optimizer.SGD:
        return torch.optim.SGD(parameters, lr=rate)
    if job.model.optimizer is Optimizer.ADAGRAD:
        return torch.optim.Adagrad(parameters, lr=rate, fused=True)
    return torch.optim.AdamW(parameters, lr=rate, fused=True)


def _is_spread(values: Any) -> bool:
    """Whether a tensor is one of a device mesh."""
    return hasattr(values, "full_tensor")


def _whole(values: Any) -> Any:
    """Returns a tensor with the parts of all ranks."""
    return values.full_tensor() if _is_spread(values) else values
