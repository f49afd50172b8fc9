"""Gathering what a study of a captured trace is made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dse.errors import ConfigError
from dse.search._input_files import platform_facts, platform_files, text_file, trace_files
from dse.search._inputs import StudyInputs, read_platforms
from dse.search._overrides import StudyMachines, check_price_changes, with_overrides
from dse.search._records import STEPS_ROLE, StudyTrace
from dse.search.evaluate._configurations import WorkloadContext
from dse.search.evaluate._rent import quote_for
from dse.trace import read_kineto
from dse.trace.whatif import captured_step, read_changes
from dse.workload import predict_job
from dse.workload.recorded import SAME_PLATFORM, RecordedWorkload, is_step_file, optimizations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dse.machine.platforms import Override
    from dse.search._records import InputFile
    from dse.search.space import SearchSpace, TraceReference
    from dse.trace.whatif import CapturedStep, Change


def trace_inputs(
    space: SearchSpace,
    workload: TraceReference,
    file: InputFile,
    overrides: Sequence[str | Override],
) -> StudyInputs:
    """Reads the traces of a space, what they were captured on, and all else that it names.

    Args:
        space: The search space.
        workload: Its workload.
        file: The space's own file.
        overrides: Changes of the platforms' figures; of a captured step only prices can change.

    Raises:
        ConfigError: A file or an override is wrong, or ranks are to be added to a job of several.
        SimulationError: The captured step depends on itself.
    """
    traces = read_kineto(workload.path)
    captured = captured_step(traces, step=workload.step, platform=workload.platform)
    _check_world_size(space, workload, captured)
    files = [file, *trace_files(workload.path, traces)]
    step_files: dict[str, tuple[Change, ...]] = {}
    for name in _named_files(space):
        path = Path(workload.folder) / name
        step_files[name] = read_changes(path)
        files.append(text_file(STEPS_ROLE, name, path))
    platforms, platform_inputs = read_platforms(space, file, without=SAME_PLATFORM)
    files += platform_inputs
    used, own = dict(platforms), ""
    if captured.machine.platform is not None:
        own = workload.platform or captured.machine.platform.name
        if own not in used:
            files += platform_files(own, captured.machine.platform)
        used[own] = captured.machine.platform
    if overrides:
        machines = StudyMachines(space, used)
        parsed = machines.parsed(overrides)
        check_price_changes(parsed, space.name)
        used = dict(machines.overridden(parsed)[0].platforms)
        files = list(with_overrides(files, parsed))
        platforms = {name: used[name] for name in platforms}
        if own:
            moved = replace(captured.machine, platform=used[own])
            captured = replace(captured, machine=moved)
    facts = [fact for name, found in used.items() for fact in platform_facts(name, found)]
    mappings = {one.name: one.mapping for one in space.derived_platforms}
    recorded = RecordedWorkload(
        workload.name, captured, workload.samples_per_step, step_files, mappings
    )
    context = WorkloadContext(space, space.search.seed, recorded, platforms)
    machine = captured.machine
    quote = None
    if machine.platform is not None:
        quote = quote_for(machine.platform, machine.world_size, space)
    trace = StudyTrace(
        path=workload.trace,
        step=captured.graph.steps[0].cut_by,
        device=machine.device_name,
        samples_per_step=workload.samples_per_step,
        platform="" if machine.platform is None else machine.platform.name,
        world_size=machine.world_size,
        baseline=predict_job(recorded.job(None, {}), quote),
    )
    return StudyInputs(context, workload.name, tuple(files), tuple(facts), trace)


def _named_files(space: SearchSpace) -> list[str]:
    sets = (optimizations({"optimizations": value}) for value in space.choices("optimizations"))
    return list(dict.fromkeys(text for texts in sets for text in texts if is_step_file(text)))


def _check_world_size(
    space: SearchSpace, workload: TraceReference, captured: CapturedStep
) -> None:
    """Refuses to add ranks to a job that has several: its collectives are those of its ranks."""
    ranks = captured.machine.world_size
    for parameter in space.parameters:
        if parameter.name == "world_size" and ranks > 1 and parameter.choices != (ranks,):
            raise ConfigError(
                f"parameters.world_size: {workload.path} is of a job of {ranks} ranks; data "
                "parallelism can be added to a job of one rank only: leave `world_size` out, or "
                "capture one rank alone"
            )
