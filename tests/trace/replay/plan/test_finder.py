"""From a recorded signature to something that can be called, and no further."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.trace.replay import NotReplayableError, register_operator, unregister_operator
from dse.trace.replay.plan._finder import OperatorFinder, base_name, full_name, mapped_device
from dse.trace.replay.read import Device, Opaque, TensorRef
from tests.trace.replay.making import ADD, EMPTY

torch = pytest.importorskip("torch")

X = TensorRef(1, 2, 0, 4, "cuda:3", "float32", (2, 3), (3, 1))
Y = TensorRef(5, 6, 0, 4, "cuda:3", "float32", (2, 3), (3, 1))


@pytest.fixture(scope="module")
def finder():
    return OperatorFinder(torch, "cpu")


def test_names(finder):
    assert (full_name(ADD), base_name(ADD)) == ("aten::add.Tensor", "aten::add")
    assert finder.find(ADD, [X, X, 1], [Y]).function is torch.ops.aten.add.Tensor


@pytest.mark.parametrize(
    "schema",
    [
        "os::system(str command) -> int",
        "load_library::__call__(str path) -> ()",
        "import_module::x(str name) -> ()",
        "aten::__class__(Tensor self) -> Tensor",
        "aten::add.__init__(Tensor self) -> Tensor",
        "aten.add(Tensor self) -> Tensor",
        "__import__('os').system('true')",
        "aten::add(" + "x" * 50_000,
        "",
    ],
)
def test_names_that_torch_has_not_registered_find_nothing(finder, schema):
    assert isinstance(finder.find(schema, [X], [Y]), str)


@pytest.mark.parametrize(
    "schema",
    [
        "aten::from_file(str filename, bool? shared=None, int? size=0) -> Tensor",
        "aten::from_file.out(str filename, bool? shared=None, int? size=0, *, Tensor(a!) out) -> "
        "Tensor(a!)",
        "aten::_print(str s) -> ()",
    ],
)
def test_no_trace_reaches_files_or_the_terminal(finder, tmp_path, schema):
    made = tmp_path / "made"
    found = finder.find(schema, [str(made), True, 4], [Y])
    assert found == "it reaches files or the terminal, which no trace may"
    assert not made.exists()


def test_arguments_that_must_be_named_are(finder):
    callee = finder.find(EMPTY, [[2, 3], 6, 0, Device("cuda:3"), False, None], [Y])
    assert callee.positional == ([2, 3],)
    assert dict(callee.keywords)["device"] == torch.device("cpu")


def test_arguments_that_came_later_keep_their_default(finder):
    old = "aten::add.Tensor(Tensor self, Tensor other) -> Tensor"
    callee = finder.find(old, [X, X], [Y])
    assert callee.positional == (X, X)


def test_arguments_that_are_gone_matter_only_with_a_value(finder):
    old = "aten::relu(Tensor self, Tensor? gone=None) -> Tensor"
    assert finder.find(old, [X, None], [Y]).positional == (X,)
    assert "no argument `gone`" in finder.find(old, [X, X], [Y])


def test_what_traces_lack_is_the_reason(finder):
    schema = "aten::set_.source_Storage(Tensor(a!) self, Storage source) -> Tensor(a!)"
    assert "`source` is a Storage" in finder.find(schema, [X, Opaque("Storage")], [X])


def test_random_numbers_come_from_the_usual_generator(finder):
    schema = "aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor"
    assert finder.find(schema, [X, Opaque("Generator")], [Y]).keywords == (("generator", None),)


def test_operators_of_gpus_have_substitutes_on_the_cpu(finder):
    schema = (
        "aten::cudnn_batch_norm(Tensor input, Tensor weight, Tensor? bias, Tensor? running_mean, "
        "Tensor? running_var, bool training, float exponential_average_factor, float epsilon) -> "
        "(Tensor, Tensor, Tensor, Tensor)"
    )
    callee = finder.find(schema, [X, X, X, None, None, True, 0.1, 1e-5], [Y])
    assert callee.kind == "substitute"
    values = torch.randn(4, 3, 2, 2)
    weight = torch.rand(3)
    found = callee.function(values, weight, weight, None, None, True, 0.1, 1e-5)
    expected = torch.nn.functional.batch_norm(values, None, None, weight, weight, training=True)
    torch.testing.assert_close(found[0], expected)
    assert len(found) == 4


def test_the_rest_says_that_it_has_no_kernel(finder):
    schema = "aten::cudnn_grid_sampler(Tensor self, Tensor grid) -> (Tensor output)"
    assert "no kernel of it for cpu" in finder.find(schema, [X, X], [Y])


def test_moves_between_devices_stay_copies(finder):
    schema = (
        "aten::to.device(Tensor(a) self, Device device, ScalarType dtype, "
        "bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor(a)"
    )
    given = [X, Device("cuda:0"), 6, False, False, None]
    moved = finder.find(schema, given, [Y])
    stayed = finder.find(schema, given, [X])
    assert moved.positional[4] is True
    assert stayed.positional[4] is False


@pytest.mark.parametrize(
    ("recorded", "device", "expected"),
    [
        ("cuda:7", "cpu", "cpu"),
        ("cuda:7", "cuda", "cuda"),
        ("cpu", "cuda", "cpu"),
        ("", "cuda", "cpu"),
    ],
)
def test_devices_are_mapped(recorded, device, expected):
    assert mapped_device(recorded, device) == expected


def test_registered_operators_come_first(finder):
    def build(call):
        assert call.name == "aten::relu"
        assert call.inputs == (X,)
        return lambda values: values + 1

    schema = "aten::relu(Tensor self) -> Tensor"
    register_operator("aten::relu", build)
    try:
        callee = finder.find(schema, [X], [Y])
    finally:
        unregister_operator("aten::relu")
    assert callee.kind == "registered"
    assert callee.function(torch.zeros(1)).tolist() == [1]
    assert finder.find(schema, [X], [Y]).kind == "torch"


def test_a_builder_may_decline(finder):
    def build(call):
        raise NotReplayableError("only on Tuesdays")

    register_operator("mine::op", build)
    try:
        assert finder.callable_here("mine::op(Tensor self) -> Tensor")
        assert finder.find("mine::op(Tensor self) -> Tensor", [X], [Y]) == "only on Tuesdays"
    finally:
        unregister_operator("mine::op")


@pytest.mark.parametrize("name", ["mine", "mine::", "::op", "mine::op.overload", "a b::c"])
def test_names_of_registrations_are_checked(name):
    with pytest.raises(ConfigError, match="not the name of an operator"):
        register_operator(name, lambda call: print)


def test_nothing_is_registered_twice():
    register_operator("mine::op", lambda call: print)
    try:
        with pytest.raises(ConfigError, match="registered already"):
            register_operator("mine::op", lambda call: print)
    finally:
        unregister_operator("mine::op")


def test_a_builder_that_fails_is_named(finder):
    def build(call):
        raise KeyError("rows")

    register_operator("mine::op", build)
    try:
        with pytest.raises(ConfigError, match=r"builder of `mine::op` failed: KeyError"):
            finder.find("mine::op(Tensor self) -> Tensor", [X], [Y])
    finally:
        unregister_operator("mine::op")
