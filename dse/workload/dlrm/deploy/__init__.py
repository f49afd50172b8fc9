"""What a training job under TorchRec needs of a configuration, as a folder of files."""

from __future__ import annotations

from dse.workload.dlrm.deploy._torchrec import (
    load_train_script,
    missing_from_script,
    torchrec_files,
    torchrec_job,
)

__all__ = ["load_train_script", "missing_from_script", "torchrec_files", "torchrec_job"]
