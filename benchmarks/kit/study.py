"""A study of two nodes, its best plans measured rank by rank on this device."""

from __future__ import annotations

from pathlib import Path
import shutil
import tempfile

import dse
from dse.calibration.microbench import describe_machine
from dse.machine.platforms import platform_of_device
from dse.search import ValidationMode, validation_to_json
from dse.validation import ValidateOptions, validate_study

FILE = "validation.json"

#: What a rehearsal on a CPU trains.
SMALL_MODEL = Path(__file__).with_name("small.yaml")


def space(
    model: str, platform: str, ranks: tuple[int, ...], batches: tuple[int, ...]
) -> dict[str, object]:
    """Returns a search over batch sizes and ranks under the reference trainer."""
    return {
        "schema_version": 1,
        "name": "gpu_kit",
        "description": "Plans whose ranks are measured one after another",
        "workload": {"model": model},
        "parameters": {
            "platform": [platform],
            "world_size": list(ranks),
            "global_batch_size": list(batches),
            "program": "dse_trainer",
            "precision": ["fp32"],
        },
        "objectives": [
            {"metric": "throughput_samples_per_s", "direction": "maximize"},
            {"metric": "memory_headroom_fraction", "direction": "maximize"},
        ],
    }


def run(out: Path, device: str, budget_s: float) -> None:
    """Searches, measures and writes the validation, unless it is there."""
    if (out / FILE).is_file():
        return
    if device == "cpu":
        searched = space(str(SMALL_MODEL), "cpu", (2,), (64, 256))
    else:
        platform = platform_of_device(describe_machine(device).device_name).name
        searched = space("dlrm_small", platform, (4, 8), (4096, 16384))
    with tempfile.TemporaryDirectory() as folder:
        study = dse.run(searched, trials=8, seed=0, out=Path(folder) / "study")
        validation = validate_study(
            study.result,
            ValidateOptions(
                top=4,
                random=2,
                device=device,
                mode=ValidationMode.RANK_SERIAL,
                budget_s=0.4 * budget_s,
            ),
        )
        written = Path(folder) / FILE
        written.write_text(validation_to_json(validation), encoding="utf-8")
        shutil.move(written, out / FILE)
