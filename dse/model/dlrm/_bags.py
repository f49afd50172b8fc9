"""Bags that several samples share: pooled vectors are copied to all of these samples.

With a variable batch per feature (TorchRec's VBE) a feature has fewer, or more, bags than samples.
Lookups and exchanges are those of bags. What arrives is brought to the samples' order by gathering
rows; backward the gradients of all samples of a bag are added up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dse.model.dlrm._blocks import Block

if TYPE_CHECKING:
    from dse.model.dlrm._blocks import Layers
    from dse.model.dlrm._model import DlrmModel

#: Reads and writes of each pooled value of a sample: read and write; read a gradient, add it.
_FORWARD_PASSES, _BACKWARD_PASSES = 2, 3


def shared_bags_block(model: DlrmModel, layers: Layers) -> Block:
    """Returns the copies of pooled vectors to samples; nothing where every sample has its own.

    Args:
        model: The model.
        layers: Makes operators over the samples of a rank.
    """
    width = sum(
        table.feature_count * table.dim for table in model.tables if table.bags_per_sample != 1
    )
    if not width:
        return Block()
    return Block(
        (layers.elementwise("expand bags", _FORWARD_PASSES * width),),
        (layers.elementwise("expand bags.backward", _BACKWARD_PASSES * width),),
    )
