"""Recommendation models from live TorchRec modules and sample batches.

Nothing here imports TorchRec: modules are known by what they offer (`embedding_bag_configs`), so
collections on the meta device, sharded or wrapped, read the same.
"""

from __future__ import annotations

from dse.model.torchrec._read import LiveModel, TableLookups, read_torchrec

__all__ = ["LiveModel", "TableLookups", "read_torchrec"]
