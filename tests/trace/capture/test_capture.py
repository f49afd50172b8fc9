"""`dse.capture` around loops of this process; nothing here needs a GPU."""

from __future__ import annotations

import gzip
import hashlib
import json
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch.optim import optimizer as torch_optimizer  # noqa: E402

import dse  # noqa: E402
from dse.errors import ConfigError  # noqa: E402
from dse.trace import (  # noqa: E402
    Category,
    link_execution_trace,
    read_execution_trace,
    read_kineto,
)
from dse.trace.capture import CaptureWarning, read_records  # noqa: E402
from tests.trace.capture.helpers import Mlp, count, numbers, only  # noqa: E402

FEW = {"steps": 2, "warm_up": 1, "skip": 1}


@pytest.fixture(autouse=True)
def single_rank(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def run(folder, train, iterations, fails_at=None, **options):
    """Goes over so many batches and returns the capture."""
    with dse.capture(folder, **{**FEW, **options}) as capture:
        for batch in capture.steps(range(iterations)):
            train(batch)
            if batch == fails_at:
                raise ZeroDivisionError
    return capture


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("captured") / "new" / "traces"
    run(folder, Mlp(), 20, steps=3, warm_up=2, skip=3)
    return folder


def test_kineto_trace_has_the_steps_and_shapes(captured):
    trace = only(captured)
    assert [step.number for step in trace.steps] == [5, 6, 7]
    assert (trace.rank, trace.world_size) == (0, 1)
    assert not trace.notes
    # Two linear layers, three steps.
    assert count(trace, "aten::addmm") == 6
    at = next(index for index in range(len(trace)) if trace.name_of(index) == "aten::addmm")
    assert trace.input_table[trace.inputs[at]].shapes.replace(" ", "").startswith("[[16],[4,8]")


def test_execution_trace_is_of_the_same_steps_and_links(captured):
    (et,) = read_execution_trace(captured)
    trace = only(captured)
    links = link_execution_trace(et, trace)
    assert links.method == "record function"
    operators = trace.where(Category.CPU_OP, Category.ANNOTATION)
    # Without a GPU nothing is launched, so all operators are counted here.
    assert (links.node[operators] >= 0).mean() >= 0.99
    steps = [name for name in (et.name_of(node) for node in range(len(et))) if "Step#" in name]
    assert steps == ["ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7"]


def test_record_says_how_it_was_made(captured):
    (record,) = read_records(captured)
    assert record.complete
    assert record.steps == (5, 6, 7)
    assert record.counted_by == "steps"
    assert (record.device, record.torch) == ("cpu", torch.__version__)
    assert record.settings.skip == 3
    # Both are means over several iterations of the same loop.
    assert record.step_s_profiled > 0
    assert record.step_s_unprofiled > 0
    assert [file.name for file in record.files] == [
        "rank0.pt.trace.json.gz",
        "rank0.et.json.gz",
    ]
    for file in record.files:
        content = (captured / file.name).read_bytes()
        assert len(content) == file.size_bytes
        assert hashlib.sha256(content).hexdigest() == file.sha256
    assert sorted(path.name for path in captured.iterdir()) == sorted(
        [*(file.name for file in record.files), "rank0.capture.json"]
    )


def test_files_name_no_place_of_this_machine(captured):
    with gzip.open(captured / "rank0.pt.trace.json.gz", "rt") as file:
        text = file.read()
    assert json.loads(text)["traceName"] == "rank0.pt.trace.json.gz"
    assert str(captured) not in text
    assert "/tmp/" not in text


def test_settings_reach_the_profiler(tmp_path):
    capture = run(tmp_path, Mlp(), 6, shapes=False, execution_trace=False)
    trace = only(tmp_path)
    assert all("[4" not in inputs.shapes for inputs in trace.input_table)
    assert not list(tmp_path.glob("*.et.json.gz"))
    assert len(capture.record.files) == 1


def test_calls_of_step_count(tmp_path):
    train = Mlp()
    with dse.capture(tmp_path, **FEW) as capture:
        for _ in range(8):
            train()
            capture.step()
    assert numbers(tmp_path) == [2, 3]
    assert count(only(tmp_path), "aten::addmm") == 4
    assert capture.record.counted_by == "step"


def test_an_optimizer_counts_if_nothing_else_does(tmp_path):
    train = Mlp()
    with dse.capture(tmp_path, **FEW) as capture:
        for _ in range(8):
            train()
    trace = only(tmp_path)
    assert [step.number for step in trace.steps] == [2, 3]
    assert count(trace, "aten::addmm") == 4
    # The optimizer's mark lies whole inside the step.
    assert count(trace, "Optimizer.step#SGD.step") == 2
    assert capture.record.counted_by == "optimizer"


def test_only_the_first_of_several_optimizers_counts(tmp_path):
    train = Mlp(optimizers=2)
    with dse.capture(tmp_path, **FEW):
        for _ in range(8):
            train()
    trace = only(tmp_path)
    assert [step.number for step in trace.steps] == [2, 3]
    assert count(trace, "aten::addmm") == 4
    assert count(trace, "Optimizer.step#SGD.step") == 4


def test_steps_of_optimizers_ahead_of_the_first_call_belong_to_the_first_iteration(tmp_path):
    train = Mlp()
    with dse.capture(tmp_path, steps=2, warm_up=1, skip=4) as capture:
        for _ in range(10):
            for _ in range(3):
                train()
            capture.step()
    assert numbers(tmp_path) == [5, 6]
    # Two layers, three times in each of two iterations.
    assert count(only(tmp_path), "aten::addmm") == 12


def test_too_many_steps_of_an_optimizer_ahead_are_refused(tmp_path):
    train = Mlp()
    capture = dse.capture(tmp_path, **FEW)
    with capture:
        for _ in range(3):
            train()
        with pytest.raises(ConfigError, match=r"stepped 3 times.*capture\.steps"):
            capture.step()
    # The profiler is off again, and nothing was kept.
    run(tmp_path, train, 6)


def test_step_beside_steps_is_refused(tmp_path):
    with dse.capture(tmp_path, **FEW) as capture:
        for _ in capture.steps(range(4)):
            with pytest.raises(ConfigError, match=r"leave `step\(\)` out"):
                capture.step()
    assert numbers(tmp_path) == [2, 3]


def test_optimizers_are_left_as_they_were(tmp_path):
    train = Mlp()
    optimizer = train.optimizers[0]
    before = dict(torch_optimizer._global_optimizer_post_hooks)
    with dse.capture(tmp_path, **FEW):
        train()
        assert "step" in vars(optimizer)
        for _ in range(6):
            train()
    assert "step" not in vars(optimizer)
    assert dict(torch_optimizer._global_optimizer_post_hooks) == before


def test_a_scheduler_may_come_later(tmp_path):
    train = Mlp()
    optimizer = train.optimizers[0]
    with dse.capture(tmp_path, **FEW):
        train()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for _ in range(6):
            train()
            scheduler.step()
    assert numbers(tmp_path) == [2, 3]
    # It still wraps what was there, which goes on without counting.
    weight = train.layers[1].weight.detach().clone()
    train()
    assert not torch.equal(weight, train.layers[1].weight)


def test_schedulers_notice_nothing(tmp_path):
    train = Mlp()
    scheduler = torch.optim.lr_scheduler.StepLR(train.optimizers[0], 1, gamma=0.5)
    wrapped = vars(train.optimizers[0])["step"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dse.capture(tmp_path, **FEW):
            for _ in range(8):
                train()
                scheduler.step()
    assert vars(train.optimizers[0])["step"] is wrapped
    assert scheduler.get_last_lr() == [pytest.approx(0.1 * 0.5**8)]


def test_an_exception_goes_on_and_what_was_recorded_is_kept(tmp_path):
    with (
        pytest.warns(CaptureWarning, match="1 of 3 steps"),
        pytest.raises(ZeroDivisionError),
    ):
        run(tmp_path, Mlp(), 9, fails_at=3, steps=3)
    # The one that raised is in the trace, but not as a step.
    trace = only(tmp_path)
    assert [step.number for step in trace.steps] == [2]
    assert count(trace, "incomplete step 3") == 1
    assert count(trace, "aten::addmm") == 4
    (record,) = read_records(tmp_path)
    assert (record.complete, record.steps) == (False, (2,))


def test_an_exception_before_the_recording_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), dse.capture(tmp_path):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_short_loop_keeps_what_it_has(tmp_path):
    with pytest.warns(CaptureWarning, match="2 of 3 steps"):
        run(tmp_path, Mlp(), 4, steps=3)
    assert numbers(tmp_path) == [2, 3]
    assert read_records(tmp_path)[0].step_s_profiled > 0


@pytest.mark.parametrize("iterations", [0, 1, 2])
def test_a_loop_without_a_recorded_step_is_an_error(tmp_path, iterations):
    with pytest.raises(ConfigError, match=f"ended after {iterations} of the 4 iterations"):
        run(tmp_path, Mlp(), iterations)
    assert not list(tmp_path.iterdir())


def test_files_are_there_while_the_loop_goes_on(tmp_path):
    train = Mlp()
    with dse.capture(tmp_path, **FEW) as capture:
        for batch in capture.steps(range(20)):
            train(batch)
            if batch == 4:
                assert len(read_kineto(tmp_path)) == 1
                # The only iteration that was skipped was the first, which does not count.
                assert capture.record.step_s_unprofiled is None
    assert capture.record.step_s_unprofiled > 0


def test_files_of_the_rank_are_not_replaced_unasked(tmp_path):
    train = Mlp()
    run(tmp_path, train, 6, rank=0)
    with pytest.raises(ConfigError, match=r"rank0\.pt\.trace\.json\.gz exists"):
        run(tmp_path, train, 6, rank=0)
    run(tmp_path, train, 6, rank=0, overwrite=True)
    run(tmp_path, train, 6, rank=3)
    assert [trace.rank for trace in read_kineto(tmp_path)] == [0, 3]


@pytest.fixture
def process_group():
    def join():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)

    yield join
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_a_process_group_names_the_rank(tmp_path, process_group):
    def leave_the_group_early():
        with dse.capture(tmp_path, **FEW) as capture:
            process_group()
            for batch in capture.steps(range(3)):
                train(batch)
            torch.distributed.destroy_process_group()

    train = Mlp()
    with pytest.warns(CaptureWarning, match="1 of 2 steps"):
        leave_the_group_early()
    with gzip.open(tmp_path / "rank0.pt.trace.json.gz") as file:
        info = json.load(file)["distributedInfo"]
    assert (info["backend"], info["rank"], info["world_size"]) == ("gloo", 0, 1)
    assert read_records(tmp_path)[0].backend == "gloo"


def test_a_wrong_rank_is_refused(tmp_path, process_group):
    def join_late():
        with dse.capture(tmp_path, **FEW, rank=5) as capture:
            process_group()
            for _ in capture.steps(range(6)):
                pass

    with pytest.raises(ConfigError, match=r"rank=5.*says 0"):
        join_late()
    assert not list(tmp_path.iterdir())


def test_one_capture_at_a_time(tmp_path):
    train = Mlp()
    with dse.capture(tmp_path / "a", **FEW) as capture:
        with (
            pytest.raises(ConfigError, match="being captured already"),
            dse.capture(tmp_path / "b"),
        ):
            pass
        for batch in capture.steps(range(6)):
            train(batch)
    assert numbers(tmp_path / "a") == [2, 3]
    with pytest.raises(ConfigError, match="records once"), capture:
        pass


def test_use_outside_of_the_block_is_refused(tmp_path):
    capture = dse.capture(tmp_path)
    with pytest.raises(ConfigError, match="outside of"):
        capture.step()
    with pytest.raises(ConfigError, match="outside of"):
        next(capture.steps([1]))


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("warm_up", -1), ("skip", 1.5)])
def test_numbers_are_checked(tmp_path, name, value):
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        dse.capture(tmp_path, **{name: value})
