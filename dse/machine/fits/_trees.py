"""Boosted trees: for tables of thousands of measurements with jumps, as GEMM has."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import lru_cache
import lzma
import sys
from typing import TYPE_CHECKING

import numpy as np

from dse.errors import CalibrationError, OptionalDependencyError
from dse.machine.fits._tree_model import TreeModel

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    import xgboost as xgb

#: Bytes that a packed model may have once it is unpacked.
_MAX_MODEL_BYTES = 64 * 2**20

#: How a model in UBJSON begins: a block whose first key has a length of eight bytes.
_UBJSON = b"{L"

#: Depth-limited trees: XGBoost walks them in lock step, three times faster than leaf-wise ones of
#: the same accuracy. The absolute error of the logarithm is robust against outliers.
_PARAMETERS = {
    "objective": "reg:absoluteerror",
    "tree_method": "hist",
    "learning_rate": 0.06,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
    "min_child_weight": 3,
    "seed": 0,
}
_ROUNDS = 1000
_DEPTH = 6

#: Largest difference between what XGBoost and the file of a model say about one example; sums of a
#: thousand single-precision leaves differ by about a millionth.
_SAME = 1e-4


@dataclass(frozen=True, slots=True)
class TreeCurve:
    """A log ratio learned by XGBoost.

    Attributes:
        feature_names: Columns of the features, in order.
        packed: The model in XGBoost's JSON, compressed by xz, in base64.
        offset_feature: Column that the trees' sum is added to; empty for none.
    """

    feature_names: tuple[str, ...]
    packed: str = field(repr=False)
    offset_feature: str = ""

    def log_ratio(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Evaluates the trees; shape `(points, features)` to `(points,)`.

        Raises:
            CalibrationError: The packed model is damaged, or the installed version of XGBoost
                reads it as another model.
            OptionalDependencyError: XGBoost is not installed.
        """
        booster = _unpacked(self.packed, len(self.feature_names))
        rows = np.ascontiguousarray(features, dtype=np.float32)
        ratio = np.asarray(booster.inplace_predict(rows), dtype=np.float64)
        if self.offset_feature:
            ratio += features[:, self.feature_names.index(self.offset_feature)]
        return ratio


def fit_tree_curve(
    feature_names: tuple[str, ...],
    features: NDArray[np.float64],
    log_ratio: NDArray[np.float64],
    *,
    offset_feature: str = "",
    rounds: int = _ROUNDS,
    depth: int = _DEPTH,
) -> TreeCurve:
    """Fits boosted trees to log ratios.

    Args:
        feature_names: Names of the columns.
        features: Shape `(points, features)`.
        log_ratio: Logarithm of measured over reference time; shape `(points,)`.
        offset_feature: Column that already explains most; the trees learn the rest.
        rounds: Number of trees.
        depth: Depth of each.

    Raises:
        OptionalDependencyError: XGBoost is not installed.
    """
    module = _xgboost()
    target = log_ratio
    if offset_feature:
        target = log_ratio - features[:, feature_names.index(offset_feature)]
    matrix = module.DMatrix(features.astype(np.float32), target)
    parameters = {**_PARAMETERS, "max_depth": depth}
    booster = module.train(parameters, matrix, num_boost_round=rounds)
    model = TreeModel.read(bytes(booster.save_raw("json")), len(feature_names))
    packed = base64.b64encode(lzma.compress(model.json(), preset=9)).decode("ascii")
    return TreeCurve(feature_names, packed, offset_feature)


@lru_cache(maxsize=16)
def _unpacked(packed: str, features: int) -> xgb.Booster:
    module = _xgboost()
    try:
        unpacker = lzma.LZMADecompressor(memlimit=2**28)
        raw = unpacker.decompress(
            base64.b64decode(packed, validate=True), max_length=_MAX_MODEL_BYTES
        )
        if len(raw) >= _MAX_MODEL_BYTES:
            raise CalibrationError(
                f"the model is larger than {_MAX_MODEL_BYTES} bytes once unpacked; fit it again"
            )
        if not unpacker.eof:
            raise ValueError("it ends too early")  # noqa: TRY301 - reported like other damage
        if raw.startswith(_UBJSON):
            raise CalibrationError(
                "the trees of a calibration are in the binary format of earlier versions; fit "
                "them again with `dse fit gemm`"
            )
        booster: xgb.Booster = module.Booster()
        model = TreeModel.read(raw, features)
        booster.load_model(bytearray(model.binary()))
        # A few rows gain nothing by threads, and threads of OpenMP do not survive a fork.
        booster.set_param({"nthread": 1})
    except (ValueError, LookupError, lzma.LZMAError, module.core.XGBoostError) as error:
        raise CalibrationError(
            f"the packed model of a calibration is damaged ({error}); fit it again"
        ) from error
    _check(booster, model, module.__version__)
    return booster


def _check(booster: xgb.Booster, model: TreeModel, version: str) -> None:
    """Compares one prediction with what the trees themselves say.

    Raises:
        CalibrationError: They differ: this version of XGBoost reads the file as another model.
    """
    row, expected = model.example()
    found = float(booster.inplace_predict(row[None, :])[0])
    if not abs(found - expected) <= _SAME * max(1.0, abs(expected)):
        raise CalibrationError(
            f"XGBoost {version} predicts {found:.6g} where the trees of a calibration say "
            f"{expected:.6g}; install another version: pip install 'xgboost-cpu>=3.1'"
        )


def _xgboost() -> ModuleType:
    if sys.flags.optimize > 1:
        # XGBoost puts its docstrings together while it is imported.
        raise OptionalDependencyError(
            "XGBoost, which has the learned kernels, needs docstrings; run Python without -OO and "
            "PYTHONOPTIMIZE=2"
        )
    try:
        import xgboost
    except ImportError as error:
        raise OptionalDependencyError(
            "this platform's kernels are learned by XGBoost, which is not installed; "
            "pip install xgboost-cpu"
        ) from error
    return xgboost
