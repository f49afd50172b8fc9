"""Training programs of recommendation models, with the origin of every figure.

What a program does is *read* from its sources where they are open (where the bottom MLP runs, what
is fused, how gradients of rows are carried) or *counted* (passes over rows, kernels). What can be
neither is *fitted*, always on all published cases of that program together, never on one case; the
page `docs/method.md` lists all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dse.machine.kernels import FBGEMM, EmbeddingKernels
from dse.workload._launch import LaunchMode
from dse.workload._programs import IDEAL, FittedValue, Program
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._software import (
    IDEAL_RUNTIME,
    ONE_BUFFER_BYTES,
    DenseBottom,
    DlrmRuntime,
    HandlingTimes,
    HostOperators,
    InputPath,
    KeySearch,
)
from dse.workload.dlrm.program._wire import WireFormat, WireFormats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dse.machine import Precision

#: TorchRec converts for the wire by kernels of their own (`QuantizedCommCodec`).
_CONVERTED = WireFormats(codec=True)

#: Passes over a four-byte row by a cast between it and half precision: four bytes and two.
_CAST_PASSES = 1.5


@dataclass(frozen=True, slots=True)
class DlrmProgram(Program):
    """A training program of recommendation models.

    Attributes:
        software: How it is written, in four-byte arithmetic.
        casts_rows: Under mixed precision, pooled rows and their gradients are cast by kernels of
            their own.
        narrow_gradients: Under mixed precision, gradients of what all ranks hold are reduced in
            the precision of the products.
        copies_rows_in_a_node: Whether tables and hot rows may be on every rank where all ranks
            are of one node.
        replicates: Whether it has 2D parallelism: several sharding groups with copies of the
            tables.
        looks_ahead: Whether it has pipelines besides `base` and `sparse_dist`.
        chooses_wire: Whether formats of pooled embeddings on the wire can be chosen.
        cpu_software: How it is written where the ranks are CPUs; None if that is no different.
        one_step_over_slow_links: Whether exchanges over several nodes have one step where ranks of
            a node have no fast link to all others: the first of two steps passes all bytes there.
    """

    software: DlrmRuntime = IDEAL_RUNTIME
    casts_rows: bool = False
    narrow_gradients: bool = False
    copies_rows_in_a_node: bool = True
    replicates: bool = False
    looks_ahead: bool = False
    chooses_wire: bool = False
    cpu_software: DlrmRuntime | None = None
    one_step_over_slow_links: bool = False

    def software_for(
        self,
        precision: Precision,
        *,
        on_cpu: bool = False,
        one_node: bool = False,
        slow_link: bool = False,
    ) -> DlrmRuntime:
        """Returns the program in a precision of the dense part, on GPUs or on a CPU.

        Under mixed precision, pooled values travel in two bytes, unless the program converts for
        the wire by kernels of its own, which mixed precision leaves alone. Gradients of replicated
        rows travel in two bytes where the program replicates hot rows.
        """
        software = self.software
        if on_cpu and self.cpu_software is not None:
            software = self.cpu_software
        if one_node and not self.copies_rows_in_a_node:
            software = replace(software, copies_rows=False, hot_rows=False)
        if slow_link and self.one_step_over_slow_links:
            software = replace(software, hierarchical_exchange=False)
        if precision.value_bytes == 4:
            return software
        kernels = software.embedding
        if self.casts_rows:
            kernels = replace(
                kernels,
                forward_row_passes=kernels.forward_row_passes + _CAST_PASSES,
                backward_row_passes=kernels.backward_row_passes + _CAST_PASSES,
            )
        software = replace(
            software,
            replicated_gradient_bytes=precision.value_bytes if self.narrow_gradients else 4,
            embedding=kernels,
        )
        if software.wire.codec:
            return software
        return replace(software, wire=WireFormats.of(WireFormat(precision.value)))


_HIPC22 = "36 single-GPU iteration times of HiPC'22: V100, TITAN Xp and P100"
_DLE = "14 published throughputs of DeepLearningExamples: V100 and A100, 1 to 16 GPUs"
_TFDE = "7 published iteration times of the synthetic models tiny and small: A100, 1 to 32 GPUs"
_P4D = "4 published throughputs of torchrec_dlrm on p4d.24xlarge"
_DCNV2 = "11 MLPerf submissions of DLRM-DCNv2 without evaluation: 8 × A100 and 8 × H100"

_DCNV2_EVALUATION = "the evaluations of the same 11 submissions"
_V11_EVALUATION = "the evaluations of 8 MLPerf submissions of v1.1 on 4 and 8 A100"

#: Filtering, sorting and uniting keys.
_INDEX_UNIT_S = 58e-9

#: A value in HugeCTR's raw files, whatever it is.
_RAW_VALUE_BYTES = 4.0

#: HugeCTR's host for a batch that is evaluated; reading its samples, and the area under the curve.
_EVALUATION_BATCH_S = 0.7e-3
_EVALUATION_S = 50e-9

#: Calls of PyTorch for one operator, on hosts and in versions of 2022.
_PYTORCH_CALLS = 4.8
_TORCHREC_2022_CALLS = 3.8

#: TorchRec's handling of batches, features and exchange groups.
_TORCHREC_OPERATORS = HostOperators(
    batch=20.0, feature=0.17, group=34.0, cut_rows=3.0, replicated=12.0
)

#: Bytes moved for each index. Indices are brought into the order of exchange groups and, received,
#: into that of tables: read and written, twice. To sort them by owner, two kernels read them, and
#: the second one writes each into a sector of its own.
_PERMUTED_BYTES = 32.0
_BUCKETIZED_BYTES = 48.0

#: Host time of the trainer's own operators, and what routing moves.
_TRAINER = "processor time of the phases of two synthetic tasks on two ranks of a CPU"
_TRAINER_STEP_S = 3.6e-3
_TRAINER_ROUTED_BYTES = 350.0

#: What a step of TorchRec on a CPU takes besides what is counted: exchanges of counts that GPUs do
#: not wait for, threads of gloo.
_TORCHREC_ON_CPU = "steps of two synthetic tasks on two ranks of a CPU over gloo"
_TORCHREC_CPU_STEP_S = 3.4e-3

#: Processor time of TorchRec's handling on a CPU, and of sorting indices by owner: 6 ns each.
_TORCHREC_HANDLING = HandlingTimes(
    batch_s=366e-6, feature_s=3e-6, group_s=372e-6, cut_rows_s=27e-6, replicated_s=192e-6
)
_CPU_BUCKETIZED_BYTES = 190.0

_TORCHREC = DlrmRuntime(
    wire=_CONVERTED,
    triangle_gradient_bytes=200.0,
    embedding=replace(
        FBGEMM, joined_index_bytes=_PERMUTED_BYTES, routed_index_bytes=_BUCKETIZED_BYTES
    ),
    host_operators=_TORCHREC_OPERATORS,
    capturable=False,
    pytorch_memory=True,
)

_TORCHREC_CPU = replace(
    _TORCHREC,
    embedding=replace(_TORCHREC.embedding, routed_index_bytes=_CPU_BUCKETIZED_BYTES),
    host_operators=HostOperators(),
    handling=_TORCHREC_HANDLING,
    step_host_s=_TORCHREC_CPU_STEP_S,
)

_HUGECTR_HYBRID = DlrmRuntime(
    launch=LaunchMode.CUDA_GRAPHS,
    dense_bucket_bytes=ONE_BUFFER_BYTES,
    joint_all_reduce=True,
    fused_activations=True,
    fused_interaction=True,
    input_path=InputPath.BY_TABLE,
    hierarchical_exchange=True,
    evaluation_batch_size=1_792_000,
    overlap_evaluation=True,
    evaluation_batch_s=_EVALUATION_BATCH_S,
    evaluation_on_devices=True,
    read_value_bytes=_RAW_VALUE_BYTES,
    hot_rows=True,
)

#: HugeCTR 3.1 numbers the keys of the global batch (8 bytes each), selects those whose rows the
#: rank has (the key, and a sector with the place of its row), and does the same for its frequent
#: rows on one node, or marks where the keys of its samples lie on several: a byte each, written
#: and read. Of kernels that run beside one another the longer row counts.
_KEY_SEARCH = (KeySearch(key_bytes=8 + 36 + 36, kernels=7), KeySearch(8 + 36 + 2, kernels=8))

_PROGRAMS = (
    DlrmProgram(
        name=IDEAL,
        description="The best of all programs at once; no program reaches it",
        replicates=True,
        origin=(
            "Assumed: batches are on the devices already, one captured graph an iteration, fused "
            "layers, everything overlaps that can, gradients as narrow as the products"
        ),
        narrow_gradients=True,
        looks_ahead=True,
        chooses_wire=True,
        one_step_over_slow_links=True,
    ),
    DlrmProgram(
        name="pytorch_eager",
        description="DLRM in eager PyTorch of 2022 on one stream, table-batched lookups",
        software=DlrmRuntime(
            pipeline=TrainPipeline.BASE,
            calls_per_operator=_PYTORCH_CALLS,
            triangle_gradient_bytes=2400.0,
            embedding=EmbeddingKernels(fused=False, backward_row_passes=4.4),
        ),
        origin=(
            "Read: copies of the batch come before its lookups; the interaction's triangle is "
            "taken by general indexing, whose gradient sorts all its values"
        ),
        fitted=(
            FittedValue("calls_per_operator", _PYTORCH_CALLS, _HIPC22),
            FittedValue("triangle_gradient_bytes", 2400.0, _HIPC22),
            FittedValue("backward_row_passes", 4.4, _HIPC22),
        ),
    ),
    DlrmProgram(
        name="torchrec",
        description="TorchRec with its pipelined loop: fused lookups, eager launches",
        replicates=True,
        software=_TORCHREC,
        origin=(
            "Read: input distribution of the next batch overlaps with this one; pooled values "
            "travel in four bytes whatever the precision; the host reads how many indices each "
            "rank gets. Counted: radix sort of the triangle's values in three passes; bytes of "
            "indices that are permuted and, for cut rows, sorted by owner. Measured: operators of "
            "batches, features and groups, as processor time of TorchRec 1.8 with PyTorch 2.13 on "
            "one rank of a CPU (23 models and plans), and launches of a captured step"
        ),
        fitted=(FittedValue("step_host_s", _TORCHREC_CPU_STEP_S, _TORCHREC_ON_CPU),),
        cpu_software=_TORCHREC_CPU,
        looks_ahead=True,
        chooses_wire=True,
    ),
    DlrmProgram(
        name="dse_trainer",
        description="The trainer of `dse validate`: eager PyTorch, one process a rank",
        software=DlrmRuntime(
            lengths_first=True,
            step_host_s=_TRAINER_STEP_S,
            embedding=EmbeddingKernels(
                one_table_at_a_time=True,
                output_row_passes=2.0,
                joined_index_bytes=16.0,
                routed_index_bytes=_TRAINER_ROUTED_BYTES,
            ),
        ),
        origin=(
            "Read: lengths, then indices, of later batches overlap with this one; lookups and "
            "updates table by table as `dse calibrate` measures them. Counted: joining reads and "
            "writes every index, and every pooled row"
        ),
        fitted=(
            FittedValue("step_host_s", _TRAINER_STEP_S, _TRAINER),
            FittedValue("routed_index_bytes", _TRAINER_ROUTED_BYTES, _TRAINER),
        ),
    ),
    DlrmProgram(
        name="torchrec_dlrm",
        description="The torchrec_dlrm training script: TorchRec, batches made by the same thread",
        replicates=True,
        software=replace(
            _TORCHREC, calls_per_operator=_TORCHREC_2022_CALLS, loader_s_per_sample=5.6e-6
        ),
        origin=(
            "Like `torchrec`, with the host time of 2022. Read: the in-memory reader builds "
            "batches in the training thread"
        ),
        fitted=(
            FittedValue("calls_per_operator", _TORCHREC_2022_CALLS, _P4D),
            FittedValue("loader_s_per_sample", 5.6e-6, _P4D),
        ),
        looks_ahead=True,
        chooses_wire=True,
    ),
    DlrmProgram(
        name="deeplearningexamples",
        description="NVIDIA DeepLearningExamples DLRM in PyTorch: forward and backward captured",
        software=DlrmRuntime(
            launch=LaunchMode.CUDA_GRAPHS,
            pipeline=TrainPipeline.BASE,
            dense_bottom=DenseBottom.FIRST_RANK,
            fused_interaction=True,
            input_path=InputPath.BY_TABLE,
            step_host_s=1.4e-3,
            embedding=EmbeddingKernels(fused=False, backward_row_passes=7.0),
        ),
        origin=(
            "Read: bottom MLP on the first GPU for the whole batch, tables on the others (on all "
            "of up to four GPUs); a synchronisation in every step that waits for the next batch's "
            "copy; optimizers outside the captured graph; interaction in one kernel; sparse "
            "gradients with a row for each lookup. Counted passes over such rows: read and write "
            "a gradient, scale (two), add to the table (three)"
        ),
        fitted=(FittedValue("step_host_s", 1.4e-3, _DLE),),
        casts_rows=True,
    ),
    DlrmProgram(
        name="hugectr_3_1",
        description="HugeCTR 3.1 with the hybrid embedding of one-hot models (mid 2021)",
        software=replace(_HUGECTR_HYBRID, overlap_gradient_exchange=False, key_search=_KEY_SEARCH),
        origin=(
            "Like `hugectr_hybrid`, before version 3.3. Read: rows of a batch's keys are found in "
            "its own iteration; gradients of rows are exchanged behind the all-reduce. Counted: "
            "kernels and bytes that find them"
        ),
        fitted=(FittedValue("evaluation_batch_s", _EVALUATION_BATCH_S, _V11_EVALUATION),),
        narrow_gradients=True,
        copies_rows_in_a_node=False,
    ),
    DlrmProgram(
        name="hugectr_hybrid",
        description="HugeCTR with the hybrid embedding of one-hot models (end of 2021, 2022)",
        software=_HUGECTR_HYBRID,
        origin=(
            "Read: whole iteration captured, fused layers, overlapped exchanges in two steps, all "
            "gradients in one buffer; batches of an evaluation overlap; each frequent row is on "
            "one rank of a single node (`NVLink_SingleNode`), on every rank of several"
        ),
        fitted=(FittedValue("evaluation_batch_s", _EVALUATION_BATCH_S, _V11_EVALUATION),),
        narrow_gradients=True,
        copies_rows_in_a_node=False,
    ),
    DlrmProgram(
        name="hugectr",
        description="HugeCTR with the embedding collection of multi-hot models (2023 on)",
        software=replace(
            _HUGECTR_HYBRID,
            input_path=InputPath.BY_SAMPLE,
            evaluation_batch_size=262_144,
            overlap_evaluation=False,
            evaluation_s_per_sample=_EVALUATION_S,
            evaluation_on_devices=False,
            rows_on_some=True,
            embedding=EmbeddingKernels(index_unit_s=_INDEX_UNIT_S),
        ),
        origin=(
            "Read: like `hugectr_hybrid`, but every rank reads its own samples, whose keys are "
            "exchanged while the batch before is trained or evaluated, and batches of an "
            "evaluation follow one another; keys of all tables are filtered, sorted and united; "
            "rows of a table may be cut over some ranks or nodes"
        ),
        fitted=(
            FittedValue("index_unit_s", _INDEX_UNIT_S, _DCNV2),
            FittedValue("evaluation_batch_s", _EVALUATION_BATCH_S, _V11_EVALUATION),
            FittedValue("evaluation_s_per_sample", _EVALUATION_S, _DCNV2_EVALUATION),
        ),
        narrow_gradients=True,
    ),
    DlrmProgram(
        name="distributed_embeddings",
        description="TensorFlow with distributed-embeddings and Horovod",
        software=DlrmRuntime(
            launch=LaunchMode.CUDA_GRAPHS,
            overlap_dense_all_reduce=False,
            input_path=InputPath.ON_DEVICE,
            step_host_s=1.8e-3,
            embedding=EmbeddingKernels(
                fused=False,
                forward_row_passes=2.0,
                backward_row_passes=5.0,
                index_bytes=300.0,
                hot_row_s=17e-9,
                kernels_per_feature=10.0,
            ),
        ),
        origin=(
            "Read: batches prepared on the devices, rows of dense multi-hot inputs gathered and "
            "summed by two operators, gradients as indexed slices that are united before the "
            "update. Counted passes over rows: gathered rows written and read; gradients spread "
            "out, joined (two), summed by segments (two). Index bytes: joining and one radix sort "
            "of 64-bit keys. Launches by the graph executor count as the host time of the step"
        ),
        fitted=(
            FittedValue("hot_row_s", 17e-9, _TFDE),
            FittedValue("step_host_s", 1.8e-3, _TFDE),
        ),
    ),
)

#: Built-in programs by name.
DLRM_PROGRAMS: Mapping[str, DlrmProgram] = {program.name: program for program in _PROGRAMS}
