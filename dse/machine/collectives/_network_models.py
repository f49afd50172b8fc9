"""Which network model holds for a network: a calibration of its own, or that of its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dse.machine.fits import NetworkModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dse.machine import NetworkSpec
    from dse.machine.collectives._groups import CollectiveOp
    from dse.machine.fits import NetworkCalibration

#: Networks without a calibration, by kind. Shares of the rate are fitted to published nccl-tests
#: of large messages. InfiniBand: 85–96 GB/s of bus bandwidth on 3 × 8 A100 with four HDR200 cards
#: a node, and 48 GB/s a rank on NDR400 for all-to-all; EFA (first generation): AWS p4d, 57.2, 31.8
#: and 29.6 GB/s on 2, 3 and 4 nodes; Ethernet: 9.3 GB/s of algorithm bandwidth on 2 × 8 A100 over
#: 100 Gbit/s. Direct shares of EFA and Ethernet are assumed. Latencies and protocols: RoCE from
#: shares of peak bandwidth on 2–128 nodes of a cloud (aliyun/SimAI), its exchanges from
#: all-to-alls on 2–16 nodes there; InfiniBand from the smallest all-reduces of published
#: nccl-tests over HDR (20 µs on two nodes of one A100, NVIDIA/nccl-tests#150; 63 µs on 32 nodes of
#: eight, NVIDIA/nccl#652), and from the ratios of protocols in NCCL's own tuning tables (8.5 and
#: 5 µs a message of a tree; a 3.8th of the rate); EFA from the calibration of its second
#: generation; Ethernet as EFA.
_KINDS = {
    "infiniband": NetworkModel(0.92, 0.92, 0.96, 1.15, 0.25, 1.7),
    "roce": NetworkModel(0.92, 0.92, 0.90, 4.0, 0.15, 1.5),
    "efa": NetworkModel(0.62, 0.62, 0.80, 1.7, 0.07, 2.1),
    "ethernet": NetworkModel(0.75, 0.75, 0.80, 1.7, 0.07, 2.1),
}

#: A network of any other kind: assumed, between the ones above.
_OTHER_KIND = NetworkModel(0.70, 0.70, 0.80, 3.0, 0.10, 1.8)

#: Standard deviation of the logarithm of actual over predicted time without a calibration;
#: published figures of those networks are few and all at large sizes, so that of the formulas
#: inside a node is assumed.
_SPREAD_OF_KIND = 0.25

#: Added for an operation that a calibration did not measure, as an independent error.
_SPREAD_OTHER_OP = 0.2


def network_calibration(network: NetworkSpec, op: CollectiveOp) -> NetworkCalibration | None:
    """Returns the calibration that counts for an operation, or None where there is none.

    Platforms list them in order of preference: the first one that measured the operation; without
    one, the first.
    """
    for calibration in network.calibrations:
        if op.value in calibration.ops:
            return calibration
    return network.calibrations[0] if network.calibrations else None


def network_model(network: NetworkSpec, op: CollectiveOp) -> NetworkModel:
    """Returns the shares and latencies that count for an operation."""
    calibration = network_calibration(network, op)
    return model_of_kind(network.kind) if calibration is None else calibration.model


def model_of_kind(kind: str) -> NetworkModel:
    """Returns the shares and latencies of a kind of network that nobody measured here."""
    return _KINDS.get(kind.lower(), _OTHER_KIND)


def network_spread(
    network: NetworkSpec, op: CollectiveOp, nbytes: NDArray[np.float64], nodes: int
) -> NDArray[np.float64] | float:
    """Returns the standard deviation of the logarithm of actual over predicted time.

    Args:
        network: The network.
        op: The operation.
        nbytes: Message sizes as nccl-tests counts them, any shape.
        nodes: Nodes that take part.
    """
    calibration = network_calibration(network, op)
    if calibration is None:
        return _SPREAD_OF_KIND
    spread = calibration.spread_at(nbytes, nodes)
    if op.value in calibration.ops:
        return spread
    return np.asarray(np.hypot(spread, _SPREAD_OTHER_OP), dtype=np.float64)
