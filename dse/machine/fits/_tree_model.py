"""Models of boosted trees in XGBoost's JSON, reduced to what a prediction needs.

XGBoost trusts its model files: an index beyond an array reads foreign memory, and trees with a
cycle never end. So only splits, leaves and the base score are read from a file and checked; the
rest of the document (parents, statistics of the training, bookkeeping) is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
import struct
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

#: Limits on what is read; fitted models have 1,000 trees of at most 127 nodes.
_MAX_TREES = 20_000
_MAX_NODES = 2048

#: Trees whose splits an example is made of.
_EXAMPLE_TREES = 50

#: Parent of a root, as XGBoost writes it.
_NO_PARENT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TreeModel:
    """Trees that XGBoost may evaluate on rows of so many features.

    Attributes:
        features: Number of features.
        base_score: What the leaves are added to, as text.
        ends: Where each tree ends in the arrays below; shape `(trees,)`.
        left: Left child of each node, counted within its tree, or −1 for a leaf; this array and
            those below have shape `(nodes,)`.
        right: Right child.
        feature: Feature by which a node splits.
        value: Limit of a split, below which a row goes left, or what a leaf adds.
        default_left: Whether a row whose feature is missing goes left.
    """

    features: int
    base_score: str
    ends: NDArray[np.int64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    value: NDArray[np.float64]
    default_left: NDArray[np.uint8]

    @classmethod
    def read(cls, content: bytes, features: int) -> TreeModel:
        """Reads and checks a model in XGBoost's JSON.

        Args:
            content: The model, by `Booster.save_raw("json")` or by :meth:`json`.
            features: Number of features that the model will be evaluated on.

        Raises:
            ValueError: It is not a model of this kind, or could not be evaluated safely.
        """
        try:
            learner = msgspec.json.decode(content, type=_File).learner
        except RecursionError:
            raise ValueError("its JSON is nested too deeply") from None
        parameters, trees = learner.learner_model_param, learner.gradient_booster.model.trees
        if parameters.num_feature != str(features):
            raise ValueError(
                f"it names {features} features but its model has {parameters.num_feature}"
            )
        arrays = {
            name: [getattr(tree, name) for tree in trees] for name in _Tree.__struct_fields__
        }
        sizes = {name: np.array([*map(len, of)], np.int64) for name, of in arrays.items()}
        nodes = sizes["left_children"]
        for of_array in sizes.values():
            _expect(of_array == nodes, "a node lacks a part")

        def joined(name: str, kind: type) -> NDArray[Any]:
            return np.fromiter(chain.from_iterable(arrays[name]), kind, count=int(nodes.sum()))

        model = cls(
            features=features,
            # Some versions write it in brackets, which those before cannot read.
            base_score=parameters.base_score.strip("[]"),
            ends=np.cumsum(nodes),
            left=joined("left_children", np.int32),
            right=joined("right_children", np.int32),
            feature=joined("split_indices", np.int32),
            value=joined("split_conditions", np.float64),
            default_left=joined("default_left", np.uint8),
        )
        model._check()
        return model

    def json(self) -> bytes:
        """Returns the model in JSON that XGBoost may load: the form in which it is stored."""
        return msgspec.json.encode(self._document(), enc_hook=np.ndarray.tolist)

    def binary(self) -> bytes:
        """Returns the model in UBJSON, which XGBoost loads fifteen times faster than JSON."""
        return b"".join(_ubjson(self._document()))

    def example(self) -> tuple[NDArray[np.float32], float]:
        """Returns one row of features and what the model predicts for it, without XGBoost.

        Each feature is the median of the values that the first trees split it at, so a path goes
        through the middle of the data.

        Returns:
            The row, of shape `(features,)`, and the sum of the base score and one leaf of each
            tree.
        """
        starts = self._starts()
        limit = self.value.astype(np.float32)
        first = np.arange(self.ends[:_EXAMPLE_TREES][-1] if len(self.ends) else 0)
        splits = first[self.left[first] != -1]
        row = np.zeros(self.features, np.float32)
        for feature in np.unique(self.feature[splits]):
            row[feature] = np.median(self.value[splits[self.feature[splits] == feature]])
        node = starts
        while (inner := self.left[node] != -1).any():
            goes_left = row[self.feature[node]] < limit[node]
            child = starts + np.where(goes_left, self.left[node], self.right[node])
            node = np.where(inner, child, node)
        return row, float(self.base_score) + float(limit[node].sum(dtype=np.float64))

    def _starts(self) -> NDArray[np.int64]:
        return np.concatenate(([0], self.ends[:-1])).astype(np.int64)[: len(self.ends)]

    def _check(self) -> None:
        tree = self._tree_of_node()
        start, end = self._starts()[tree], self.ends[tree]
        at = np.arange(len(tree))
        is_inner = self.left != -1
        _expect(is_inner == (self.right != -1), "a node has one child", tree)
        # Children follow their parent, and each has only one: no path leads back.
        inner = np.flatnonzero(is_inner)
        for child in (self.left, self.right):
            place = child[inner] + start[inner]
            _expect((place > at[inner]) & (place < end[inner]), _FOLLOWS, tree[inner])
        parents = np.zeros(len(tree), np.int64)
        for child in (self.left, self.right):
            np.add.at(parents, child[inner] + start[inner], 1)
        _expect(parents <= 1, "two nodes have the same child", tree)
        _expect(self.feature < self.features, "a split by a feature beyond the last", tree)

    def _tree_of_node(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.ends)), self.ends - self._starts())

    def _document(self) -> dict[str, object]:
        """Returns all that XGBoost wants to read, with arrays of the types that it expects."""
        trees = len(self.ends)
        start = self._starts()[self._tree_of_node()]
        inner = np.flatnonzero(self.left != -1)
        parents = np.full(len(self.left), _NO_PARENT, np.int32)
        for child in (self.left, self.right):
            parents[child[inner] + start[inner]] = inner - start[inner]
        unused, split_type = np.zeros(_MAX_NODES), np.zeros(_MAX_NODES, np.uint8)
        blocks = []
        for number, (begin, end) in enumerate(
            zip(self._starts().tolist(), self.ends.tolist(), strict=True)
        ):
            of_tree, nodes = slice(begin, end), end - begin
            block = {
                "base_weights": unused[:nodes],
                "categories": _NO_INDICES,
                "categories_nodes": _NO_INDICES,
                "categories_segments": _NO_SIZES,
                "categories_sizes": _NO_SIZES,
                "default_left": self.default_left[of_tree],
                "id": number,
                "left_children": self.left[of_tree],
                "loss_changes": unused[:nodes],
                "parents": parents[of_tree],
                "right_children": self.right[of_tree],
                "split_conditions": self.value[of_tree],
                "split_indices": self.feature[of_tree],
                "split_type": split_type[:nodes],
                "sum_hessian": unused[:nodes],
                "tree_param": {
                    "num_deleted": "0",
                    "num_feature": str(self.features),
                    "num_nodes": str(nodes),
                    "size_leaf_vector": "1",
                },
            }
            blocks.append(block)
        model = {
            "cats": {"enc": [], "feature_segments": _NO_INDICES, "sorted_idx": _NO_INDICES},
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(trees)},
            "iteration_indptr": [*range(trees + 1)],
            "tree_info": [0] * trees,
            "trees": blocks,
        }
        return {
            "learner": {
                "attributes": {},
                "feature_names": [],
                "feature_types": [],
                "gradient_booster": {"model": model, "name": "gbtree"},
                "learner_model_param": {
                    "base_score": self.base_score,
                    "boost_from_average": "1",
                    "num_class": "0",
                    "num_feature": str(self.features),
                    "num_target": "1",
                },
                "objective": {"name": "reg:absoluteerror"},
            },
            "version": [3, 0, 0],
        }


_FOLLOWS = "a child does not follow its parent"
_NO_INDICES = np.zeros(0, np.int32)
_NO_SIZES = np.zeros(0, np.int64)

#: How UBJSON marks arrays of one type; XGBoost keeps all its numbers in single precision.
_UBJSON_ARRAYS = {
    np.dtype(np.uint8): (b"U", ">u1"),
    np.dtype(np.int32): (b"l", ">i4"),
    np.dtype(np.int64): (b"L", ">i8"),
    np.dtype(np.float64): (b"d", ">f4"),
}


def _ubjson(value: object) -> Iterator[bytes]:
    """Yields the parts of a document in UBJSON, with arrays of one type as XGBoost wants them."""
    if isinstance(value, dict):
        yield b"{"
        for key, part in value.items():
            yield b"L" + struct.pack(">q", len(key)) + key.encode()
            yield from _ubjson(part)
        yield b"}"
    elif isinstance(value, np.ndarray):
        mark, kind = _UBJSON_ARRAYS[value.dtype]
        yield b"[$" + mark + b"#L" + struct.pack(">q", len(value)) + value.astype(kind).tobytes()
    elif isinstance(value, list):
        yield b"[#L" + struct.pack(">q", len(value))
        for part in value:
            yield from _ubjson(part)
    elif isinstance(value, str):
        yield b"SL" + struct.pack(">q", len(value)) + value.encode()
    elif isinstance(value, int):
        yield b"l" + struct.pack(">i", value)


def _expect(holds: NDArray[np.bool_], problem: str, tree: NDArray[np.int64] | None = None) -> None:
    """Raises for the first place where something does not hold; `tree` is that of each place."""
    if not holds.all():
        first = int(np.argmin(holds))
        raise ValueError(f"tree {first if tree is None else tree[first]}: {problem}")


_Child = Annotated[int, Meta(ge=-1, lt=_MAX_NODES)]
_Feature = Annotated[int, Meta(ge=0, lt=2**16)]
_Float32 = Annotated[float, Meta(ge=-3e38, le=3e38)]
_Bit = Annotated[int, Meta(ge=0, le=1)]
_Nodes = Meta(min_length=1, max_length=_MAX_NODES)


class _Tree(msgspec.Struct):
    left_children: Annotated[list[_Child], _Nodes]
    right_children: Annotated[list[_Child], _Nodes]
    split_indices: Annotated[list[_Feature], _Nodes]
    split_conditions: Annotated[list[_Float32], _Nodes]
    default_left: Annotated[list[_Bit], _Nodes]
    split_type: Annotated[list[Literal[0]], _Nodes]


class _Trees(msgspec.Struct):
    trees: Annotated[list[_Tree], Meta(max_length=_MAX_TREES)]


class _Booster(msgspec.Struct):
    name: Literal["gbtree"]
    model: _Trees


class _Parameters(msgspec.Struct):
    base_score: Annotated[str, Meta(pattern=r"^\[?-?[0-9.]{1,12}(E-?[0-9]{1,2})?\]?\Z")]
    num_class: Literal["0"]
    num_feature: str
    num_target: Literal["1"]
    boost_from_average: Literal["0", "1"] = "1"


class _Objective(msgspec.Struct):
    name: Literal["reg:absoluteerror"]


class _Learner(msgspec.Struct):
    gradient_booster: _Booster
    learner_model_param: _Parameters
    objective: _Objective


class _File(msgspec.Struct):
    learner: _Learner
