"""Tiny traces replayed from file to result."""

from __future__ import annotations

import pytest

from dse.errors import ConfigError
from dse.indices import Zipf
from dse.trace.replay import ReplayOptions, register_operator, replay, unregister_operator
from tests.trace.replay.making import (
    ADD,
    EMBEDDING,
    EMPTY,
    MM,
    MUL,
    RELU,
    VIEW,
    Object,
    T,
    annotation,
    call,
    node,
    write,
)

torch = pytest.importorskip("torch")

ONCE = ReplayOptions(iterations=2, warm_up=0)
X, Y, Z = T(10, (4, 8)), T(11, (4, 8)), T(12, (4, 8))


def replayed(path, nodes, options=ONCE, schema="1.1.1-chakra.0.0.4"):
    return replay([write(path / "rank0.et.json", nodes, schema)], options).ranks[0]


@pytest.fixture
def spy():
    """Registers operators that keep what they are called with."""
    names, calls = [], []

    def register(name, result=None):
        def build(call):
            def run(*arguments):
                calls.append((name, arguments))
                return result(*arguments) if result else None

            return run

        register_operator(name, build)
        names.append(name)
        return calls

    yield register
    for name in names:
        unregister_operator(name)


def test_operators_run_in_order_on_what_others_gave(tmp_path, spy):
    spy("mine::first", lambda values: values + 1)
    calls = spy("mine::second", lambda values: values * 2)
    nodes = [
        annotation(2, 1, "step"),
        call(3, 2, "mine::first(Tensor self) -> Tensor", [X], [Y]),
        call(4, 3, RELU, [X], [Z]),
        call(5, 2, "mine::second(Tensor self) -> Tensor", [Y], [Z]),
    ]
    rank = replayed(tmp_path, nodes)
    # Twice to settle, then twice with the time taken.
    assert [name for name, _ in calls] == ["mine::first", "mine::second"] * 4
    torch.testing.assert_close(calls[1][1][0], calls[0][1][0] + 1)
    assert (rank.coverage.operators, rank.coverage.replayed) == (2, 2)
    assert len(rank.iteration_s) == len(rank.cpu_s) == 2
    assert rank.replayed_s == sum(rank.iteration_s) / 2


def test_tensors_are_as_recorded(tmp_path, spy):
    calls = spy("mine::look")
    inputs = [
        T(20, (3, 2), strides=(1, 3)),
        T(21, (2,), dtype="long int"),
        [T(22, ()), T(23, (2,), storage=9), T(24, (2,), storage=9, offset=1)],
        None,
        0.5,
        Object("Generator"),
    ]
    schema = "mine::look(Tensor a, Tensor b, Tensor[] c, Tensor? d, float e, Generator? f) -> ()"
    replayed(tmp_path, [call(2, 1, schema, inputs)])
    turned, whole, (scalar, left, right), nothing, number, opaque = calls[0][1]
    assert (tuple(turned.shape), turned.stride()) == ((3, 2), (1, 3))
    assert whole.dtype == torch.int64
    assert scalar.shape == ()
    # One element is in both.
    assert left[1] == right[0]
    left.fill_(7.0)
    assert right[0] == 7
    assert (nothing, number, opaque) == (None, 0.5, None)


def test_what_is_skipped_is_grouped_with_its_reason(tmp_path):
    nodes = [
        call(2, 1, RELU, [X], [Y]),
        call(3, 1, "gone::op(Tensor self) -> Tensor", [Y], [Z]),
        call(4, 1, "gone::op(Tensor self) -> Tensor", [Y], [Z]),
        call(5, 1, "aten::relu.nowhere(Tensor self) -> Tensor", [Y], [Z]),
        call(6, 1, MM, [X, T(13, (4, 8))], [T(14, (4, 8))]),
        node(7, 1, "torch::autograd::CppNode<Mine>", scope=1, inputs=[Y]),
    ]
    rank = replayed(tmp_path, nodes)
    skipped = {one.name: (one.count, one.reason) for one in rank.skipped}
    assert skipped["gone::op"] == (2, "the library `gone` is not loaded")
    assert "no operator of this name and overload" in skipped["aten::relu"][1]
    assert skipped["aten::mm"][1].startswith("it refused its arguments: mat1 and mat2")
    assert skipped["torch::autograd::CppNode<Mine>"][1] == "its signature was not recorded"
    assert (rank.coverage.operators, rank.coverage.replayed) == (6, 1)
    assert rank.coverage.operator_share == pytest.approx(1 / 6)


def test_the_result_of_an_operator_that_refuses_is_made_beforehand(tmp_path, spy):
    calls = spy("mine::look")
    nodes = [
        call(2, 1, MM, [X, Y], [Z]),
        call(3, 1, "mine::look(Tensor a) -> ()", [Z]),
    ]
    rank = replayed(tmp_path, nodes)
    assert [tuple(values.shape) for _, (values,) in calls] == [(4, 8)] * 4
    assert rank.coverage.replayed == 1


def test_results_of_another_shape_do_not_derail_what_follows(tmp_path):
    nonzero = "aten::nonzero(Tensor self) -> Tensor"
    found = T(20, (3, 2), dtype="long int")
    nodes = [
        call(2, 1, nonzero, [X], [found]),
        call(3, 1, VIEW, [found, [6]], [T(21, (6,), storage=1020, dtype="long int")]),
    ]
    rank = replayed(tmp_path, nodes)
    assert rank.coverage.replayed == 2
    assert any("another shape than recorded" in note for note in rank.notes)


@pytest.mark.parametrize("moved", [False, True])
def test_indices_are_in_range_and_spread(tmp_path, spy, moved):
    calls = spy("mine::look")
    rows, table = 50, T(30, (50, 4))
    indices = T(31, (400,), dtype="long int")
    nodes = []
    if moved:
        clone = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor"
        nodes = [call(2, 1, clone, [indices, None], [T(32, (400,), dtype="long int")])]
        indices = T(32, (400,), dtype="long int")
    nodes += [
        call(3, 1, "mine::look(Tensor a) -> ()", [indices]),
        call(4, 1, EMBEDDING, [table, indices, -1, False, False], [T(33, (400, 4))]),
    ]
    rank = replayed(tmp_path, nodes)
    assert rank.coverage.replayed == len(nodes)
    drawn = calls[0][1][0]
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < rows
    assert len(drawn.unique()) > rows * 0.9


def test_a_skewed_distribution_repeats_rows(tmp_path, spy):
    calls = spy("mine::look")
    indices = T(31, (400,), dtype="long int")
    nodes = [
        call(3, 1, "mine::look(Tensor a) -> ()", [indices]),
        call(4, 1, EMBEDDING, [T(30, (5000, 4)), indices, -1, False, False], [T(33, (400, 4))]),
    ]
    for options in (ONCE, ReplayOptions(iterations=1, warm_up=0, indices=Zipf(1.2))):
        replayed(tmp_path, nodes, options)
    uniform, zipf = calls[0][1][0], calls[-1][1][0]
    assert len(zipf.unique()) < 0.7 * len(uniform.unique())


def test_computed_indices_out_of_range_are_replaced(tmp_path):
    full = (
        "aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, "
        "Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor"
    )
    indices = T(31, (6,), dtype="long int")
    nodes = [
        call(2, 1, full, [[6], 99, 4, None, None, None], [indices]),
        call(3, 1, EMBEDDING, [T(30, (5, 4)), indices, -1, False, False], [T(33, (6, 4))]),
    ]
    rank = replayed(tmp_path, nodes)
    assert rank.coverage.replayed == 2
    assert any(note.startswith("1 arguments with indices") for note in rank.notes)


def test_unwritten_indices_are_replaced(tmp_path):
    indices = T(31, (6,), dtype="long int")
    nodes = [
        call(2, 1, EMPTY, [[6], 4, None, None, None, None], [indices]),
        call(3, 1, EMBEDDING, [T(30, (5, 4)), indices, -1, False, False], [T(33, (6, 4))]),
    ]
    rank = replayed(tmp_path, nodes)
    assert rank.coverage.replayed == 2
    assert any(note.startswith("1 arguments with indices") for note in rank.notes)


def test_offsets_of_bags_ascend(tmp_path, spy):
    calls = spy("mine::look")
    bag = (
        "aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, "
        "bool scale_grad_by_freq=False, int mode=0, bool sparse=False, "
        "Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> "
        "(Tensor, Tensor, Tensor, Tensor)"
    )
    weight, indices = T(30, (50, 4)), T(31, (12,), dtype="long int")
    offsets = T(32, (4,), dtype="long int")
    integers = [T(34 + at, (size,), dtype="long int") for at, size in enumerate((12, 4, 4))]
    inputs = [weight, indices, offsets, False, 0, False, None, False, -1]
    nodes = [
        call(2, 1, "mine::look(Tensor a) -> ()", [offsets]),
        call(3, 1, bag, inputs, [T(33, (4, 4)), *integers]),
    ]
    rank = replayed(tmp_path, nodes)
    assert rank.coverage.replayed == 2
    assert calls[0][1][0].tolist() == [0, 3, 6, 9]


def test_what_is_rooted_is_not_negative(tmp_path, spy):
    calls = spy("mine::look")
    nodes = [
        call(2, 1, "mine::look(Tensor a) -> ()", [X]),
        call(3, 1, "aten::sqrt(Tensor self) -> Tensor", [X], [Y]),
    ]
    replayed(tmp_path, nodes)
    assert float(calls[0][1][0].min()) >= 0


def test_a_tensor_that_does_not_fit_is_named(tmp_path):
    huge = T(77, (10**6, 10**6))
    with pytest.raises(ConfigError, match=r"tensor 77 of shape \[1000000, 1000000\].*TiB|GiB"):
        replayed(tmp_path, [call(2, 1, RELU, [huge], [T(78, (10**6, 10**6))])])


def test_an_operator_cannot_ask_for_more_than_there_is(tmp_path):
    # The recorded result is small, but what the call asks for is not.
    nodes = [
        call(2, 1, EMPTY, [[2**20, 2**20], 6, None, None, None, None], [T(12, (2,))]),
    ]
    with pytest.raises(ConfigError, match=r"aten::empty.* needs 4,096\.0 GiB"):
        replayed(tmp_path, nodes)


def test_the_limit_on_memory_holds_for_all_together(tmp_path):
    nodes = [call(2 + at, 1, MUL, [X, X], [T(20 + at, (64, 1024))]) for at in range(3)]
    big = T(10, (64, 1024))
    nodes = [call(2 + at, 1, MUL, [big, big], [T(20 + at, (64, 1024))]) for at in range(3)]
    # Each result is let go at once, so two of 256 KiB are there at any time.
    rank = replayed(tmp_path, nodes, ReplayOptions(iterations=1, memory_limit_bytes=600_000))
    assert rank.memory_bytes == 2 * 64 * 1024 * 4
    with pytest.raises(ConfigError, match="raise --memory-limit"):
        replayed(tmp_path, nodes, ReplayOptions(iterations=1, memory_limit_bytes=400_000))


def test_old_schemas_are_replayed(tmp_path):
    nodes = []
    for number, (inputs, outputs) in enumerate([([X, Y, 1], [Z]), ([Z, Y, 1], [T(13, (4, 8))])]):
        new = call(2 + number, 1, ADD, inputs, outputs)
        attributes = {one["name"]: one["value"] for one in new["attrs"]}
        nodes.append(
            {
                "id": new["id"],
                "name": new["name"],
                "parent": 1,
                **attributes,
                **{
                    f"{side}{what}": new[f"{side}s"][key]
                    for side in ("input", "output")
                    for what, key in (("s", "values"), ("_shapes", "shapes"), ("_types", "types"))
                },
            }
        )
    rank = replayed(tmp_path, nodes, schema="1.0.1")
    assert (rank.schema, rank.coverage.replayed) == ("1.0.1", 2)


def test_nothing_to_replay_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="no operators with signatures"):
        replayed(tmp_path, [annotation(2, 1, "step")])
    nodes = [call(2, 1, "gone::op(Tensor self) -> Tensor", [X], [Y])]
    with pytest.raises(ConfigError, match="library `gone` is not loaded"):
        replayed(tmp_path, nodes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device": "tpu"}, "device: `tpu`"),
        ({"part": "computes"}, "did you mean `compute`"),
        ({"collectives": "fake"}, "collectives"),
        ({"iterations": 0}, "iterations: 0"),
        ({"warm_up": -1}, "warm_up: -1"),
        ({"scale_batch": 0}, "scale_batch"),
        ({"scale_batch": float("nan")}, "scale_batch"),
        ({"batch": 0}, "batch"),
        ({"memory_limit_bytes": 0}, "memory_limit_bytes"),
    ],
)
def test_options_are_checked(changes, word):
    with pytest.raises(ConfigError, match=word):
        ReplayOptions(**changes)


def test_a_rank_is_given_once(tmp_path):
    nodes = [call(2, 1, RELU, [X], [Y])]
    paths = [write(tmp_path / name, nodes) for name in ("rank0.et.json", "copy.rank0.et.json")]
    with pytest.raises(ConfigError, match="rank 0 again"):
        replay(paths, ONCE)
