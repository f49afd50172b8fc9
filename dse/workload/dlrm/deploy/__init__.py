"""What a training job under TorchRec needs of a configuration, as a folder of files."""

from __future__ import annotations

from dse.workload.dlrm.deploy._torchrec import torchrec_files

__all__ = ["torchrec_files"]
