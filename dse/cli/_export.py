"""`dse export`: one candidate of a study as a file that can be deployed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dse.cli._options import StudyArgument
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.search import Study, TrialRecord
    from dse.workload.dlrm import Configuration
    from dse.workload.transformer import StepConfiguration


def export_command(
    study_dir: StudyArgument,
    candidate: Annotated[int, typer.Option("--candidate", help="Number of the configuration.")],
    kind: Annotated[
        Literal["torchrec", "megatron", "json", "yaml"],
        typer.Option(
            "--format",
            help="torchrec and json: the plan; yaml: the configuration. Of a transformer json and "
            "yaml are the configuration, megatron the arguments of Megatron-LM. Of a captured "
            "trace json and yaml are the changes, for `dse trace whatif --steps`.",
        ),
    ] = "json",
    out: Annotated[
        Path | None, typer.Option("--out", help="File; standard output if left out.")
    ] = None,
) -> None:
    """Write the plan, the whole configuration, or the changes of one candidate."""
    from dse._files import write_atomically
    from dse.search import load_study

    study = load_study(study_dir)
    record = _record(study, candidate)
    if study.result.trace is not None:
        text = _changes(study, record, kind)
    else:
        text = _render(study, _configuration(record), kind)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(out, text)


def _record(study: Study, candidate: int) -> TrialRecord:
    for record in study.result.records:
        if record.number == candidate:
            return record
    front = ", ".join(str(record.number) for record in study.result.front[:10])
    raise ConfigError(f"the study has no configuration {candidate}; on its front: {front}")


def _configuration(record: TrialRecord) -> Configuration | StepConfiguration:
    if record.configuration is None:
        raise ConfigError(
            f"configuration {record.number} has no plan: it is {record.status.value} "
            f"({record.reason})"
        )
    return record.configuration


def _changes(study: Study, record: TrialRecord, kind: str) -> str:
    import json

    from dse.config import parse_plain
    from dse.search import stored_steps

    if kind in ("torchrec", "megatron"):
        raise ConfigError(
            f"--format {kind}: the study changes a captured trace and has no sharding plan; use "
            "--format yaml for the changes"
        )
    if not record.evaluated:
        raise ConfigError(
            f"configuration {record.number} cannot be applied: it is {record.status.value} "
            f"({record.reason})"
        )
    text = stored_steps(study.result, record)
    if kind == "yaml":
        return text
    return json.dumps(parse_plain(text), indent=1) + "\n"


def _render_step(study: Study, configuration: StepConfiguration, kind: str) -> str:
    import json

    import yaml

    from dse.search import stored_transformer
    from dse.workload.transformer import configuration_to_json, configuration_to_megatron

    if kind == "torchrec":
        raise ConfigError(
            "--format torchrec: a transformer has no sharding plan of tables; use --format "
            "megatron, json or yaml"
        )
    if kind == "megatron":
        return configuration_to_megatron(configuration, stored_transformer(study.result))
    text = configuration_to_json(configuration, study.result.model_name)
    return text if kind == "json" else yaml.safe_dump(json.loads(text), sort_keys=False)


def _render(study: Study, configuration: Configuration | StepConfiguration, kind: str) -> str:
    from dse.workload.transformer import StepConfiguration as OfTransformer

    if isinstance(configuration, OfTransformer):
        return _render_step(study, configuration, kind)
    if kind == "megatron":
        raise ConfigError(
            "--format megatron: the study is of a recommendation model; use --format torchrec, "
            "json or yaml"
        )
    if kind == "json":
        from dse.sharding import plan_to_json

        return plan_to_json(configuration.plan, study.result.model_name)
    if kind == "torchrec":
        from dse.search import stored_model, stored_platform
        from dse.sharding import plan_to_torchrec

        model = stored_model(study.result)
        platform = stored_platform(study.result, configuration.platform)
        device_kind = "cpu" if platform.device.kind == "cpu" else "cuda"
        return plan_to_torchrec(
            configuration.plan, model.tables, platform.devices_per_node, device_kind
        )
    from pydantic import TypeAdapter
    import yaml

    from dse.workload.dlrm import Configuration as ConfigurationType

    plain = TypeAdapter(ConfigurationType).dump_python(configuration, mode="json")
    return yaml.safe_dump({"schema_version": 1, **plain}, sort_keys=False)
