"""Named optimizations; each module is one, written over the primitives of a job."""

from __future__ import annotations

from dse.trace.whatif.optimizations._amp import Amp
from dse.trace.whatif.optimizations._batch_norm import BatchNorm
from dse.trace.whatif.optimizations._blueconnect import BlueConnect
from dse.trace.whatif.optimizations._cuda_graphs import CudaGraphs
from dse.trace.whatif.optimizations._data_parallel import DataParallel
from dse.trace.whatif.optimizations._dgc import DeepGradientCompression
from dse.trace.whatif.optimizations._fused_optimizer import FusedOptimizer
from dse.trace.whatif.optimizations._fusion import Fusion
from dse.trace.whatif.optimizations._gist import Gist
from dse.trace.whatif.optimizations._gpu import Device, Gpu
from dse.trace.whatif.optimizations._network import Network
from dse.trace.whatif.optimizations._p3 import P3
from dse.trace.whatif.optimizations._precision import ChangedPrecision
from dse.trace.whatif.optimizations._reshard import Reshard
from dse.trace.whatif.optimizations._resize import Resize
from dse.trace.whatif.optimizations._vdnn import Vdnn

#: All of them, in the order of the documentation.
OPTIMIZATIONS = (
    Network,
    Gpu,
    Device,
    ChangedPrecision,
    Resize,
    Reshard,
    Amp,
    FusedOptimizer,
    BatchNorm,
    Fusion,
    CudaGraphs,
    DataParallel,
    P3,
    BlueConnect,
    DeepGradientCompression,
    Vdnn,
    Gist,
)

__all__ = [
    "OPTIMIZATIONS",
    "P3",
    "Amp",
    "BatchNorm",
    "BlueConnect",
    "ChangedPrecision",
    "CudaGraphs",
    "DataParallel",
    "DeepGradientCompression",
    "Device",
    "FusedOptimizer",
    "Fusion",
    "Gist",
    "Gpu",
    "Network",
    "Reshard",
    "Resize",
    "Vdnn",
]
