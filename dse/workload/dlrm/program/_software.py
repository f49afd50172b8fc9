"""Properties of a training program that its time depends on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dse.machine.kernels import EmbeddingKernels
from dse.workload._launch import LaunchMode
from dse.workload.dlrm.program._pipelines import TrainPipeline
from dse.workload.dlrm.program._wire import WireFormats


class DenseBottom(StrEnum):
    """Where the bottom MLP runs.

    EVERY_RANK: data-parallel, like the rest of the dense part. FIRST_RANK: on rank 0 with the
    global batch, as one more member of the output exchange; its gradients need no all-reduce.
    """

    EVERY_RANK = "every_rank"
    FIRST_RANK = "first_rank"


class InputPath(StrEnum):
    """How a batch reaches the devices.

    BY_SAMPLE: every rank copies its own samples; indices are exchanged between the ranks.
    BY_TABLE: every rank copies the indices of its tables for the global batch.
    ON_DEVICE: batches are made on the devices beforehand.
    """

    BY_SAMPLE = "by_sample"
    BY_TABLE = "by_table"
    ON_DEVICE = "on_device"


@dataclass(frozen=True, slots=True)
class HostOperators:
    """Operators of the framework that the host dispatches besides those of the model.

    A framework for sharded tables handles features and exchanges in many small steps. They are
    given as the operators of one launch that take as long on the same host. Eager launches only.

    Attributes:
        batch: For each iteration: the batch is copied and waited for, modules and pipeline are
            gone through.
        feature: For each feature of the model.
        group: For each exchange group of the plan: lengths and indices are exchanged, tables
            looked up, vectors exchanged and waited for, and all of that backward.
        cut_rows: For each group whose rows are cut, on top of that: indices are sorted by owner.
        replicated: For the group of tables of which every rank has a copy.
    """

    batch: float = 0.0
    feature: float = 0.0
    group: float = 0.0
    cut_rows: float = 0.0
    replicated: float = 0.0


@dataclass(frozen=True, slots=True)
class HandlingTimes:
    """The same on a CPU, which is host and device in one: processor time instead of operators.

    Attributes:
        batch_s: For each iteration.
        feature_s: For each feature of the model.
        group_s: For each exchange group of the plan.
        cut_rows_s: For each group whose rows are cut, on top of that.
        replicated_s: For the group of tables of which every rank has a copy.
    """

    batch_s: float = 0.0
    feature_s: float = 0.0
    group_s: float = 0.0
    cut_rows_s: float = 0.0
    replicated_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KeySearch:
    """What every rank does with the keys of the global batch to find those that concern it.

    Attributes:
        key_bytes: Bytes that it moves for each key.
        kernels: Kernels that follow one another.
    """

    key_bytes: float = 0.0
    kernels: int = 0


#: A bucket that holds all dense gradients.
ONE_BUFFER_BYTES = 2**62

_FUSED = EmbeddingKernels()
_NO_SEARCH = KeySearch()
_NO_OPERATORS = HostOperators()
_NO_TIMES = HandlingTimes()
_FP32 = WireFormats()


@dataclass(frozen=True, slots=True)
class DlrmRuntime:
    """How the training program is written, as far as time depends on it.

    Attributes:
        launch: Eager launches, or one captured CUDA graph an iteration.
        overlap_dense_all_reduce: Dense gradients are reduced in buckets during the backward pass.
        pipeline: Which work on later batches overlaps with this iteration.
        wire: Formats of pooled embeddings and their gradients on the wire.
        replicated_gradient_bytes: Bytes of one gradient value of what all ranks hold (dense
            layers, replicated tables, hot rows) on the wire.
        dense_bucket_bytes: Size of a dense gradient bucket (DDP's default is 25 MiB).
        joint_all_reduce: Gradients of replicated tables and hot rows share the buffer of the dense
            gradients, instead of an all-reduce of their own.
        overlap_gradient_exchange: Gradients of pooled vectors are exchanged as soon as the
            interaction has them; otherwise behind the reduction of all other gradients.
        key_search: Work before the lookups of the same batch, where every rank reads the global
            batch: on one node, and on several.
        dense_bottom: Where the bottom MLP runs.
        fused_activations: Biases, activations and their gradients are part of the products.
        fused_interaction: Concatenation, dot products and their triangle are one kernel each way.
        triangle_gradient_bytes: Bytes moved for each value of a dot interaction's triangle in the
            backward pass by general indexing, which sorts; 0 where a kernel knows the triangle.
        embedding: What happens around lookups and updates.
        input_path: How a batch reaches the devices.
        hierarchical_exchange: All-to-alls of pooled vectors, and sums of row-wise tables, over
            several nodes have two steps: inside each node, then between the ranks of one place in
            all nodes, which saves messages and lets the cards of a node send the same. Otherwise
            every rank sends to every other one, and sums go round in a ring.
        lengths_first: The input distribution is two collectives: lengths of bags, from which the
            ranks learn how many indices they get, then indices. One of all bytes otherwise.
        calls_per_operator: Calls of the framework for one operator: bookkeeping of
            automatic differentiation, views, casts, one optimizer call a parameter. Eager only;
            host overheads measured from traces hold them already.
        host_operators: Operators that the host dispatches besides those of the model.
        handling: What takes their place on a CPU; all zero on GPUs.
        step_host_s: Host time of an iteration during which devices wait: synchronisation,
            optimizer calls outside a captured graph.
        loader_s_per_sample: Host time of one rank to load a sample, in the thread that launches.
        read_value_bytes: Bytes of an index, a dense feature and a label in the files that the
            program reads from the node's storage, ahead of the iteration; 0 of programs that leave
            reading to their user. With `InputPath.BY_TABLE` every node reads the global batch,
            otherwise the samples of its ranks.
        capturable: Whether an iteration can be captured as a graph; the host must not need to know
            anything that the devices compute.
        pytorch_memory: Whether memory is that of a PyTorch pipeline: batches as they were copied
            stay next to what is exchanged, and the allocator reserves more than it gives out.
        evaluation_batch_size: Samples of a batch in evaluations; None for as many as in training.
        overlap_evaluation: Batches of an evaluation overlap: exchanges of one with products of
            another.
        evaluation_batch_s: Host time for each batch of an evaluation during which devices wait:
            the batch is waited for and taken over, and work is launched for it.
        evaluation_s_per_sample: Time of one rank for each sample that it evaluates, besides the
            forward pass: reading the sample, and the metric.
        evaluation_on_devices: Whether the devices keep the samples of evaluations, which are read
            once; otherwise each evaluation reads them.
        copies_rows: Whether plans may keep a whole table on every rank.
        hot_rows: Whether plans may keep the most popular rows of a table on every rank.
        rows_on_some: Whether plans may cut the rows of a table over some ranks or some nodes only,
            whose partial sums are exchanged like pooled vectors and added up where they arrive.
    """

    launch: LaunchMode = LaunchMode.EAGER
    overlap_dense_all_reduce: bool = True
    pipeline: TrainPipeline = TrainPipeline.SPARSE_DIST
    wire: WireFormats = _FP32
    replicated_gradient_bytes: int = 4
    dense_bucket_bytes: int = 25 * 2**20
    joint_all_reduce: bool = False
    overlap_gradient_exchange: bool = True
    key_search: tuple[KeySearch, KeySearch] = (_NO_SEARCH, _NO_SEARCH)
    dense_bottom: DenseBottom = DenseBottom.EVERY_RANK
    fused_activations: bool = False
    fused_interaction: bool = False
    triangle_gradient_bytes: float = 0.0
    embedding: EmbeddingKernels = _FUSED
    input_path: InputPath = InputPath.BY_SAMPLE
    hierarchical_exchange: bool = False
    lengths_first: bool = False
    calls_per_operator: float = 1.0
    host_operators: HostOperators = _NO_OPERATORS
    handling: HandlingTimes = _NO_TIMES
    step_host_s: float = 0.0
    loader_s_per_sample: float = 0.0
    read_value_bytes: float = 0.0
    capturable: bool = True
    pytorch_memory: bool = False
    evaluation_batch_size: int | None = None
    overlap_evaluation: bool = False
    evaluation_batch_s: float = 0.0
    evaluation_s_per_sample: float = 0.0
    evaluation_on_devices: bool = False
    copies_rows: bool = True
    hot_rows: bool = False
    rows_on_some: bool = False


#: The best of every built-in program; batches are on the devices already.
IDEAL_RUNTIME = DlrmRuntime(
    launch=LaunchMode.CUDA_GRAPHS,
    dense_bucket_bytes=ONE_BUFFER_BYTES,
    joint_all_reduce=True,
    input_path=InputPath.ON_DEVICE,
    fused_activations=True,
    fused_interaction=True,
    hierarchical_exchange=True,
    hot_rows=True,
    rows_on_some=True,
)
