"""Recommendation models from live TorchRec modules and sample batches.

Modules are known by what they offer (`embedding_bag_configs`), so collections on the meta device,
or in place of TorchRec's, read the same. Only running a module needs TorchRec, whose classes its
collections return.
"""

from __future__ import annotations

from dse.model.torchrec._read import TableLookups, read_torchrec

__all__ = ["LiveModel", "TableLookups", "read_torchrec"]
