"""Tiny execution traces made by hand."""

from __future__ import annotations

from dataclasses import dataclass
import json
import math

from dse.trace import read_execution_trace

_BYTES = {"float": 4, "long int": 8, "int": 4, "bool": 1}


@dataclass(frozen=True)
class T:
    """A tensor: identity, memory, shape; the memory has the number of the tensor by default."""

    tensor: int
    shape: tuple[int, ...]
    storage: int = 0
    dtype: str = "float"
    offset: int = 0
    strides: tuple[int, ...] | None = None
    device: str = "cpu"

    def value(self):
        storage = self.storage or self.tensor + 1000
        count = math.prod(self.shape)
        return [self.tensor, storage, self.offset, count, _BYTES[self.dtype], self.device]

    def steps(self):
        if self.strides is not None:
            return list(self.strides)
        return [math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))]


@dataclass(frozen=True)
class Object:
    """Something that traces do not hold."""

    kind: str


def _parts(value):
    """Value, shape, type and strides as a trace has them."""
    if isinstance(value, T):
        return value.value(), list(value.shape), f"Tensor({value.dtype})", value.steps()
    if isinstance(value, list):
        parts = [_parts(one) for one in value]
        values, shapes, kinds, steps = ([part[at] for part in parts] for at in range(4))
        return values, shapes, f"GenericList[{','.join(kinds)}]", steps
    if isinstance(value, Object):
        return f"<{value.kind}>", [], value.kind, []
    if value is None:
        return "<None>", [], "None", []
    kinds = {bool: "Bool", int: "Int", float: "Double", str: "String"}
    return value, [], kinds[type(value)], []


def _side(values):
    parts = [_parts(value) for value in values]
    names = ("values", "shapes", "types", "strides")
    return {name: [part[at] for part in parts] for at, name in enumerate(names)}


def node(number, parent, name, *, schema="", inputs=(), outputs=(), **attributes):
    """A node of schema 1.1.1; the name is that of the signature if there is one."""
    given = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": _side(inputs),
        "outputs": _side(outputs),
        "attrs": [
            {"name": key, "type": "uint64", "value": value}
            for key, value in {**given, "op_schema": schema, **attributes}.items()
        ],
    }


def call(number, parent, schema, inputs=(), outputs=(), **attributes):
    """An operator."""
    name = schema.partition("(")[0].partition(".")[0]
    return node(number, parent, name, schema=schema, inputs=inputs, outputs=outputs, **attributes)


def annotation(number, parent, name):
    """What `record_function` leaves."""
    return node(number, parent, name, scope=7)


def write(path, nodes, schema="1.1.1-chakra.0.0.4"):
    path.write_text(json.dumps({"schema": schema, "pid": 1, "nodes": list(nodes)}))
    return path


def read(path, nodes, schema="1.1.1-chakra.0.0.4"):
    (trace,) = read_execution_trace(write(path, nodes, schema), arguments=True)
    return trace


ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
MUL = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"
RELU = "aten::relu(Tensor self) -> Tensor"
MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
T_ = "aten::t(Tensor(a) self) -> Tensor(a)"
VIEW = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)"
LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
ADDMM = (
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1)"
    " -> Tensor"
)
EMPTY = (
    "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor"
)
EMBEDDING = (
    "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, "
    "bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"
)
ALL_REDUCE = (
    "c10d::allreduce_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group, "
    "__torch__.torch.classes.c10d.ReduceOp reduce_op, Tensor? sparse_indices, bool async_op=True, "
    "int timeout=-1) -> (Tensor[], __torch__.torch.classes.c10d.Work)"
)
