"""`dse export`: one candidate of a study as a file that can be deployed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dse.cli._complete import EXPORT_FORMATS, candidates, names
from dse.cli._options import ForceOption, StudyArgument, new_file
from dse.errors import ConfigError

if TYPE_CHECKING:
    from dse.search import Study, TrialRecord
    from dse.workload import Configuration


def export_command(
    study_dir: StudyArgument,
    candidate: Annotated[
        int,
        typer.Option(
            "--candidate",
            metavar="NUMBER",
            autocompletion=candidates,
            help="Number of the configuration.",
        ),
    ],
    kind: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            autocompletion=names(EXPORT_FORMATS),
            help="json: the plan, or the configuration of models without one; yaml: the "
            "configuration; or the format of a training framework: torchrec for plans, megatron, "
            "torchtitan or fsdp for transformers. For a captured trace, json and yaml are "
            "the changes, for `dse trace whatif --steps`.",
        ),
    ] = "json",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="PATH",
            help="File; standard output if left out. A name without an ending is a folder, with "
            "--format torchrec: the plan, a script that loads it and one that trains under it.",
        ),
    ] = None,
    module_path: Annotated[
        str,
        typer.Option(
            "--module-path",
            metavar="PATH",
            help="Path of the collection of tables in the module that is trained, for a folder.",
        ),
    ] = "",
    force: ForceOption = False,
) -> None:
    """Write the plan, the whole configuration, or the changes of one candidate."""
    from dse._files import write_atomically
    from dse.search import load_study

    study = load_study(study_dir)
    record = _record(study, candidate)
    if out is not None and not out.suffix and kind not in ("json", "yaml"):
        _write_folder(study, record, kind, out, module_path, force=force)
        return
    if module_path:
        raise ConfigError("--module-path: for a folder; give --out a name without an ending")
    if study.result.trace is not None:
        text = _changes(study, record, kind)
    else:
        text = _configuration(study, record, kind)
    if out is None:
        typer.echo(text, nl=False)
    else:
        new_file("--out", out, force=force)
        write_atomically(out, text)
        typer.echo(f"{kind}: {out}")


def _write_folder(
    study: Study, record: TrialRecord, kind: str, out: Path, module_path: str, *, force: bool
) -> None:
    from dse._files import write_atomically
    from dse.search import stored_platform, stored_workload

    if out.is_dir() and any(out.iterdir()) and not force:
        raise ConfigError(f"--out {out}: not empty; choose another folder, or pass --force")
    configuration = _planned(record)
    texts = stored_workload(study.result).framework_files(
        configuration,
        kind,
        stored_platform(study.result, configuration.platform),
        module_path=module_path,
        prediction=record.prediction,
    )
    for name, text in texts.items():
        write_atomically(out / name, text)
        typer.echo(str(out / name))


def _record(study: Study, candidate: int) -> TrialRecord:
    for record in study.result.records:
        if record.number == candidate:
            return record
    front = ", ".join(str(record.number) for record in study.result.front[:10])
    raise ConfigError(f"the study has no configuration {candidate}; on its front: {front}")


def _configuration(study: Study, record: TrialRecord, kind: str) -> str:
    import yaml

    from dse.search import stored_platform, stored_workload

    configuration, result = _planned(record), study.result
    workload = stored_workload(result)
    if kind == "json":
        return workload.deployment(configuration, result.model_name)
    if kind == "yaml":
        document = workload.document(configuration, result.model_name)
        return yaml.safe_dump(document, sort_keys=False)
    platform = stored_platform(result, configuration.platform)
    return workload.framework_text(configuration, kind, platform)


def _planned(record: TrialRecord) -> Configuration:
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

    if kind not in ("json", "yaml"):
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
