"""What TorchRec's trainer makes of candidates; needs no TorchRec."""

from __future__ import annotations

import pytest

from dse.machine.platforms import load_platform
from dse.sharding import ComputeKernel
from dse.workload.dlrm import DlrmWorkload, TrainPipeline, WireFormat, WireFormats
from tests.validation.models import candidate, model
from tests.validation.trainer.torchrec.case import COPIES, WHOLE, TorchRecTrainer

TRAINER = TorchRecTrainer()


def test_pipeline_and_wire_are_kept():
    wire = WireFormats.of(WireFormat.FP16)
    one = candidate("one", model(), 2, WHOLE, pipeline=TrainPipeline.BASE, wire=wire)
    software = TRAINER.adopt(one).problem.software
    assert software.pipeline is TrainPipeline.BASE
    assert software.wire.forward is WireFormat.FP16
    assert software.wire.codec


def test_replicated_tables_are_dense():
    adopted = TRAINER.adopt(candidate("one", model(), 2, COPIES))
    assert {one.compute_kernel for one in adopted.plan.tables} == {ComputeKernel.DENSE}
    assert TRAINER.checked(adopted, "cpu").plan == adopted.plan


@pytest.mark.parametrize(("platform", "on_cpu"), [("cpu", True), ("h100_sxm", False)])
def test_the_step_of_a_cpu_has_host_time(platform, on_cpu):
    parameters = {"world_size": 2, "global_batch_size": 64, "program": "torchrec"}
    job = DlrmWorkload(model()).job(load_platform(platform), parameters)
    assert (job.problem.software.step_host_s > 0) == on_cpu
