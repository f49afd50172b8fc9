"""Uncertainty of each kind of model that a transformer's step rests on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dse.machine.kernels import sustained_share
from dse.workload._step_errors import KERNEL_SHARE
from dse.workload.transformer.kernels._routing import busiest_load
from dse.workload.transformer.step._cost import Cost

if TYPE_CHECKING:
    from dse.workload.transformer._job import TransformerJob

#: Standard deviation of the logarithm of actual over expected time, by kind of model. That of
#: products comes from their calibration.
_SPREAD = Cost(
    attention_s=0.08,
    elementwise_s=0.10,
    dispatch_s=0.30,
    inside_s=0.15,
    network_s=0.30,
    host_link_s=0.20,
)

#: Arithmetic rate of one compute unit of the device that batched products, attention that is not
#: fused, were fitted on (A100), and spread for each e-fold away from it; assumed.
_FITTED_UNIT_RATE = 312e12 / 108
_ATTENTION_SPREAD_PER_EFOLD = 0.20


def model_spreads(
    problem: TransformerJob, product_spread: float, attention_spread: float | None
) -> Cost:
    """Returns the spread of each field of a cost.

    Args:
        problem: What is trained, where and how.
        product_spread: Spread of single products, as their calibration says.
        attention_spread: Spread of fused attention, as its model says; None for batched products.
    """
    device = problem.cluster.device
    if attention_spread is None:
        unit_rate = device.peak.of(problem.precision) / device.compute_units
        efolds = abs(math.log(unit_rate / _FITTED_UNIT_RATE))
        attention_spread = math.hypot(_SPREAD.attention_s, _ATTENTION_SPREAD_PER_EFOLD * efolds)
    sustained = 0.0
    if device.power is not None and sustained_share(device, problem.precision) < 1.0:
        # It is wrong for all products alike: a step shows all of it, of other spreads a share.
        sustained = device.power.rate_spread / KERNEL_SHARE
    products = math.hypot(product_spread, sustained)
    return _SPREAD._replace(
        product_s=math.hypot(products, _routing_spread(problem)),
        attention_s=attention_spread,
    )


def _routing_spread(problem: TransformerJob) -> float:
    """Returns the spread of products by chance of routing, which is another in each layer."""
    model = problem.model
    if model.experts is None:
        return 0.0
    experts = model.experts.active * model.expert_parameters
    share = experts / (experts + model.layer_matrix_parameters)
    load = busiest_load(model.experts, problem.parallelism.expert)
    return share * load.spread / math.sqrt(model.layers)
