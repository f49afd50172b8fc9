"""Models from existing modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dse.api._inputs import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dse.model import DlrmModel


def model_from_torchrec(
    module: Any,
    batches: Iterable[Any] = (),
    *,
    name: str = "",
    global_batch_size: int | None = None,
    precision: str = "tf32",
    dense_optimizer: str = "adam",
    sparse_optimizer: str = "",
    sequence: Mapping[str, object] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
) -> DlrmModel:
    """Reads a live TorchRec module; what `dse model from-torchrec` does, without a file.

    Args:
        module: A module with an `EmbeddingBagCollection`, an `EmbeddingCollection` or several of
            them; its weights may be on the meta device.
        batches: Sample batches as the module takes them. Pooling factors and the popularity of
            rows are measured from every `KeyedJaggedTensor` in them, and the module runs on some
            samples of the first one, forward and backward with weights of its own, for the
            operators of its dense part. Without any, every bag has one lookup, all rows are
            equally popular, and an MLP of as many parameters stands for the dense part, unless it
            is a DLRM or DLRM-DCN of TorchRec, whose layers are read.
        name: Name of the model; the module's class if empty.
        global_batch_size: Samples of an iteration; those of the first batch if None.
        precision: ``fp32``, ``tf32``, ``fp16`` or ``bf16``.
        dense_optimizer: Update rule of the dense part.
        sparse_optimizer: Update rule of the tables; if empty the one that the module has, else
            row-wise Adagrad.
        sequence: Attention over the sequences of an `EmbeddingCollection`, for modules that do not
            run here: the fields of a model file's `sequence` (``layers``, ``hidden``, ``heads``,
            ``head_dim``, …). An MLP stands for the rest of the dense part.
        forward: Calls the module with a batch and returns its result, a loss or predictions. By
            default a module of one argument gets the batch, one of several its parts, by name or
            in their order.

    Returns:
        A model that everything else here accepts.

    Raises:
        UnknownNameError: A precision or an update rule is unknown.
        ConfigError: It is no module, or something in it cannot be predicted, which is named.

    Warns:
        UserWarning: Something was not in the module and has been assumed.

    Example:
        >>> model = dse.model_from_torchrec(dlrm, loader)  # doctest: +SKIP
        >>> dse.shard(model, "h100_sxm", world_size=8, program="torchrec")  # doctest: +SKIP
    """
    import warnings

    from dse.machine import Precision
    from dse.model import Optimizer
    from dse.model.torchrec import read_torchrec

    found = read_torchrec(
        module,
        batches,
        name=name,
        global_batch_size=global_batch_size,
        precision=one_of(Precision, "precision", precision),
        dense_optimizer=one_of(Optimizer, "dense_optimizer", dense_optimizer),
        sparse_optimizer=(
            one_of(Optimizer, "sparse_optimizer", sparse_optimizer) if sparse_optimizer else None
        ),
        sequence=sequence,
        forward=forward,
    )
    for note in found.notes:
        warnings.warn(note, stacklevel=2)
    return found.model
