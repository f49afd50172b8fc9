"""JSON of fitted models, with the checks that make it safe to use."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dse._text.suggest import hint
from dse.config import MAX_RANKS, AsOf, Document, StrictModel
from dse.machine import LinkKind, Precision
from dse.machine.collectives import CollectiveOp
from dse.machine.fits import NCCL_VERSION, SmoothCurve, TermCurve, TreeCurve, log_size_names
from dse.machine.kernels import (
    ATTENTION_SIZES,
    ATTENTION_TERMS,
    EMBEDDING_SIZES,
    EXCHANGE_SIZES,
    EXCHANGE_TERMS,
    EXPERT_SIZES,
    EXPERT_TERMS,
    GEMM_FEATURES,
    STREAMING_OPERATORS,
)
from dse.machine.platforms._hardware_schema import Name

#: Most knots of a collective: 30 are usual, and a search among so many still takes no time.
_MAX_KNOTS = 4096

#: Most fitted models of one file: a device has some 15 operators in 4 precisions and 6 collectives
#: on some 10 numbers of ranks, in a few versions of the library.
_MAX_MODELS = 200

#: Sizes that a calibration of each operator may look at.
_GEMM_SIZES = ("m", "n", "k")
_SIZES: dict[str, tuple[str, ...]] = {
    "gemm": _GEMM_SIZES,
    "embedding_forward": EMBEDDING_SIZES,
    "embedding_backward": EMBEDDING_SIZES,
    **{op: operator.sizes for op, operator in STREAMING_OPERATORS.items()},
    **dict.fromkeys(("memcpy_h2d", "memcpy_d2h"), ("size_bytes",)),
    "attention": ATTENTION_SIZES,
    "experts": EXPERT_SIZES,
    "expert_exchange": EXCHANGE_SIZES,
}

#: Features of operators that are more than the logarithms of their sizes, and sizes they need.
_FEATURES = {
    "gemm": (GEMM_FEATURES, _GEMM_SIZES),
    "attention": (ATTENTION_TERMS, ATTENTION_SIZES),
    "experts": (EXPERT_TERMS, EXPERT_SIZES),
    "expert_exchange": (EXCHANGE_TERMS, EXCHANGE_SIZES),
}

#: Characters of a name from a file that are shown.
_MAX_SHOWN = 60


def _error(message: str) -> PydanticCustomError:
    return PydanticCustomError("calibration", "{message}", {"message": message})


def _at_most(limit: int, what: str, advice: str) -> BeforeValidator:
    """Returns a check that refuses long lists before their entries are checked."""

    def check(value: object) -> object:
        if isinstance(value, list) and len(value) > limit:
            raise _error(f"expected at most {limit} {what}, found {len(value)}; {advice}")
        return value

    return BeforeValidator(check)


_AGAIN = "fit it again with this version"

_Models = _at_most(_MAX_MODELS, "fitted models", "put them into several files")
_Nodes = _at_most(SmoothCurve.MAX_NODES, "nodes of one curve", "fit it to fewer points")
_Knots = _at_most(_MAX_KNOTS, "knots of one collective", "fit it to fewer sizes")
#: Four times the features of GEMM: what is beyond is no list of features.
_Features = _at_most(4 * len(GEMM_FEATURES), "features", "fit it again with this version")

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
#: A share of a rate; measured ones may lie above the line rate, but not far.
RateShare = Annotated[float, Field(gt=0, le=2, allow_inf_nan=False)]
Nodes = Annotated[int, Field(ge=2, le=MAX_RANKS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class HeldOutBlock(StrictModel):
    """Errors on points that the fit did not see."""

    points: Annotated[int, Field(ge=1)]
    gmae: Share
    mape: Share
    p90: Share
    rule: Name


class SizeBlock(StrictModel):
    """Measured range of one size."""

    name: Name
    low: Share
    high: Positive

    @model_validator(mode="after")
    def _check(self) -> SizeBlock:
        if self.low > self.high:
            raise _error(
                f"expected `low` of at most `high`, found {self.low:g} and {self.high:g}; "
                "exchange them"
            )
        return self


class TreesBlock(StrictModel):
    """Boosted trees: XGBoost's JSON, compressed by xz, in base64."""

    kind: Literal["trees"]
    features: Annotated[list[Name], _Features]
    offset: str
    model: str

    @field_validator("offset")
    @classmethod
    def _among_features(cls, value: str, info: ValidationInfo) -> str:
        features = info.data.get("features")
        if value and features is not None and value not in features:
            found = value[:_MAX_SHOWN]
            raise _error(
                f"expected one of the features or nothing, found `{found}`; "
                f"{hint(found, features)}"
            )
        return value

    def to_curve(self) -> TreeCurve:
        """Returns the curve."""
        return TreeCurve(tuple(self.features), self.model, self.offset)


class SmoothBlock(StrictModel):
    """Radial basis functions through measured points."""

    kind: Literal["smooth"]
    features: Annotated[list[Name], _Features]
    kernel: Literal["linear", "thin_plate_spline"]
    smoothing: Share
    scale: list[Positive]
    nodes: Annotated[list[list[Finite]], _Nodes]
    values: Annotated[list[Finite], _Nodes]

    @field_validator("scale")
    @classmethod
    def _as_many_as_features(cls, value: list[float], info: ValidationInfo) -> list[float]:
        features = info.data.get("features")
        if features is not None and len(value) != len(features):
            raise _error(
                f"expected as many scales as features, {len(features)}, found {len(value)}"
            )
        return value

    @field_validator("nodes")
    @classmethod
    def _determine_a_curve(
        cls, value: list[list[float]], info: ValidationInfo
    ) -> list[list[float]]:
        if not {"features", "kernel", "smoothing", "scale"} <= info.data.keys():
            return value
        features = info.data["features"]
        for node in value:
            if len(node) != len(features):
                raise _error(
                    f"expected as many columns as features, {len(features)}, found {len(node)}"
                )
        nodes = tuple(tuple(node) for node in value)
        scale = tuple(info.data["scale"])
        curve = SmoothCurve(
            tuple(features), info.data["kernel"], info.data["smoothing"], scale, nodes, ()
        )
        if features and (problem := curve.problem()):
            raise _error(problem)
        return value

    @field_validator("values")
    @classmethod
    def _as_many_as_nodes(cls, value: list[float], info: ValidationInfo) -> list[float]:
        nodes = info.data.get("nodes")
        if nodes is not None and len(value) != len(nodes):
            raise _error(f"expected as many values as nodes, {len(nodes)}, found {len(value)}")
        return value

    def to_curve(self) -> SmoothCurve:
        """Returns the curve."""
        return SmoothCurve(
            tuple(self.features),
            self.kernel,
            self.smoothing,
            tuple(self.scale),
            tuple(tuple(node) for node in self.nodes),
            tuple(self.values),
        )


class TermsBlock(StrictModel):
    """A weighted sum of physical terms."""

    kind: Literal["terms"]
    features: Annotated[list[Name], _Features]
    weights: list[Share]

    @field_validator("weights")
    @classmethod
    def _one_a_term(cls, value: list[float], info: ValidationInfo) -> list[float]:
        features = info.data.get("features")
        if features is not None and len(value) != len(features):
            raise _error(
                f"expected as many weights as features, {len(features)}, found {len(value)}"
            )
        if not any(value):
            raise _error("expected a weight above zero, found none; fit it again")
        return value

    def to_curve(self) -> TermCurve:
        """Returns the curve."""
        return TermCurve(tuple(self.features), tuple(self.weights))


class KernelBlock(StrictModel):
    """A learned operator."""

    op: Name
    precisions: list[Precision]
    sizes: list[SizeBlock]
    points: Annotated[int, Field(ge=1)]
    spread: Share
    held_out: HeldOutBlock
    implementation: Annotated[str, Field(max_length=200)] = ""
    curve: Annotated[TreesBlock | SmoothBlock | TermsBlock, Field(discriminator="kind")]

    @field_validator("op")
    @classmethod
    def _known_op(cls, value: str) -> str:
        return _known(value, "operator", tuple(_SIZES))

    @field_validator("sizes")
    @classmethod
    def _sizes_of_op(cls, value: list[SizeBlock], info: ValidationInfo) -> list[SizeBlock]:
        op = info.data.get("op")
        if op is None:
            return value
        names = [size.name for size in value]
        if not names:
            raise _error(
                f"expected at least one size of `{op}` ({', '.join(_SIZES[op])}), found none"
            )
        for name in names:
            _known(name, f"size of `{op}`", _SIZES[op])
            if names.count(name) > 1:
                raise _error(f"expected each size once, found `{name}` {names.count(name)} times")
        return value

    @field_validator("curve")
    @classmethod
    def _features_of_op(
        cls, value: TreesBlock | SmoothBlock | TermsBlock, info: ValidationInfo
    ) -> TreesBlock | SmoothBlock | TermsBlock:
        op, sizes = info.data.get("op"), info.data.get("sizes")
        if op is None or sizes is None:
            return value
        features, names = tuple(value.features), tuple(size.name for size in sizes)
        special, needed = _FEATURES.get(op, ((), ()))
        if special and features == special:
            if set(names) != set(needed):
                raise _error(
                    f"expected the sizes {', '.join(needed)} for these features, found "
                    f"{', '.join(names)}; fit it again"
                )
            return value
        if isinstance(value, TermsBlock):
            raise _error(
                f"expected the terms of `attention` for this curve, found others; {_AGAIN}"
            )
        expected = log_size_names(names)
        for feature in features:
            if feature not in expected and feature not in special:
                _known(feature, f"feature of `{op}`", expected)
        if features != expected:
            also = f" (or the {len(special)} features of {op})" if special else ""
            raise _error(
                f"expected the features {', '.join(expected)} in the order of the sizes{also}, "
                f"found {len(features)} others or in another order; {_AGAIN}"
            )
        return value


class CollectiveBlock(StrictModel):
    """A measured curve of one collective."""

    op: Name
    ranks: Annotated[int, Field(ge=2, le=MAX_RANKS)]
    points: Annotated[int, Field(ge=1)]
    spread: Share
    held_out: HeldOutBlock
    latency_s: Positive
    bandwidth_bytes_per_s: Positive
    nccl: Annotated[str, Field(pattern=f"^({NCCL_VERSION})?$")] = ""
    size_bytes: Annotated[list[Positive], Field(min_length=2), _Knots]
    time_s: Annotated[list[Positive], _Knots]

    @field_validator("op")
    @classmethod
    def _known_op(cls, value: str) -> str:
        return _known(value, "collective", tuple(op.value for op in CollectiveOp))

    @model_validator(mode="after")
    def _check(self) -> CollectiveBlock:
        if len(self.time_s) != len(self.size_bytes):
            raise PydanticCustomError("curve", "expected as many times as sizes")
        if sorted(set(self.size_bytes)) != self.size_bytes or sorted(self.time_s) != self.time_s:
            raise PydanticCustomError("curve", "expected rising sizes and times that never fall")
        return self


class NetworkModelBlock(StrictModel):
    """A fitted network: shares of the line rate and multiples of the latency."""

    ops: Annotated[list[Name], Field(min_length=1, max_length=len(CollectiveOp))]
    size_bytes: tuple[Positive, Positive]
    nodes: tuple[Nodes, Nodes]
    points: Annotated[int, Field(ge=1)]
    spread: Share
    held_out: HeldOutBlock
    relayed_share: RateShare
    branched_share: RateShare
    direct_share: RateShare
    message_hops: Positive
    low_latency_share: RateShare
    full_rate_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)]

    @field_validator("ops")
    @classmethod
    def _known_ops(cls, value: list[str]) -> list[str]:
        return [_known(op, "collective", tuple(op.value for op in CollectiveOp)) for op in value]

    @model_validator(mode="after")
    def _check(self) -> NetworkModelBlock:
        for name, (low, high) in (("size_bytes", self.size_bytes), ("nodes", self.nodes)):
            if low > high:
                raise _error(
                    f"expected the smaller of `{name}` first, found {low:g} and {high:g}; "
                    "exchange them"
                )
        return self


def _known(name: str, what: str, names: tuple[str, ...]) -> str:
    """Returns a name that is known.

    Raises:
        PydanticCustomError: It is not.
    """
    if name not in names:
        found = name[:_MAX_SHOWN]
        raise _error(f"unknown {what} `{found}`; {hint(found, names)}")
    return name


class MeasuredLinkBlock(StrictModel):
    """Interconnect that the collectives were measured on; bandwidth per device and direction."""

    kind: LinkKind
    bandwidth_bytes_per_s: Positive
    latency_s: Positive
    pair_bandwidth_bytes_per_s: Positive | None = None


class CalibrationDocument(Document):
    """Fitted models of one device."""

    name: Name
    device: Name
    source: Name
    as_of: AsOf
    link: MeasuredLinkBlock | None = None
    kernels: Annotated[list[KernelBlock], Field(default_factory=list), _Models]
    collectives: Annotated[list[CollectiveBlock], Field(default_factory=list), _Models]
    networks: Annotated[list[NetworkModelBlock], Field(default_factory=list), _Models]

    @model_validator(mode="after")
    def _check(self) -> CalibrationDocument:
        models = len(self.kernels) + len(self.collectives) + len(self.networks)
        if models > _MAX_MODELS:
            raise _error(
                f"expected at most {_MAX_MODELS} fitted models, found {models}; "
                "put them into several files"
            )
        return self
