"""Models of boosted trees in XGBoost's JSON, reduced to what a prediction needs.

XGBoost trusts its model files: an index beyond an array reads foreign memory, and trees with a
cycle never end. So only splits, leaves and the base score are read from a file and checked; the
rest of the document (parents, statistics of the training, bookkeeping) is written here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Limits on what is read; fitted models have 1,000 trees of at most 127 nodes.
_MAX_TREES = 20_000
_MAX_NODES = 2048

#: Trees whose splits an example is made of.
_EXAMPLE_TREES = 50

#: Parent of a root, as XGBoost writes it.
_NO_PARENT = 2**31 - 1


def plain_json(content: bytes, features: int) -> bytes:
    """Checks a model in XGBoost's JSON and returns the same model as XGBoost may load it.

    Args:
        content: The model, by `Booster.save_raw("json")` or by this function.
        features: Number of features that the model will be evaluated on.

    Raises:
        ValueError: It is not a model of this kind, or could not be evaluated safely.
    """
    try:
        learner = _File.model_validate_json(content).learner
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    parameters, trees = learner.learner_model_param, learner.gradient_booster.model.trees
    if parameters.num_feature != str(features):
        raise ValueError(
            f"it names {features} features but its model has {parameters.num_feature}"
        )
    model = {
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
        "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
        "iteration_indptr": [*range(len(trees) + 1)],
        "tree_info": [0] * len(trees),
        "trees": [_tree(number, tree, features) for number, tree in enumerate(trees)],
    }
    document = {
        "learner": {
            "attributes": {},
            "feature_names": [],
            "feature_types": [],
            "gradient_booster": {"model": model, "name": "gbtree"},
            # Some versions write it in brackets, which those before cannot read.
            "learner_model_param": {
                **parameters.model_dump(),
                "base_score": parameters.base_score.strip("[]"),
            },
            "objective": {"name": learner.objective.name},
        },
        "version": [3, 0, 0],
    }
    return msgspec.json.encode(document)


def example(content: bytes) -> tuple[NDArray[np.float32], float]:
    """Returns one row of features and what a model predicts for it, without XGBoost.

    Each feature is the median of the values that the first trees split it at, so a path goes
    through the middle of the data.

    Args:
        content: The model, by :func:`plain_json`.

    Returns:
        The row, of shape `(features,)`, and the sum of the base score and one leaf of each tree.
    """
    learner = msgspec.json.decode(content)["learner"]
    parameters, trees = (
        learner["learner_model_param"],
        learner["gradient_booster"]["model"]["trees"],
    )
    splits: dict[int, list[float]] = {}
    for tree in trees[:_EXAMPLE_TREES]:
        parts = (tree[key] for key in ("left_children", "split_indices", "split_conditions"))
        for left, feature, limit in zip(*parts, strict=True):
            if left != -1:
                splits.setdefault(feature, []).append(limit)
    row = np.zeros(int(parameters["num_feature"]), np.float32)
    for feature, limits in splits.items():
        row[feature] = np.median(limits)
    values = row.tolist()
    total = float(parameters["base_score"])
    for tree in trees:
        left, right, split = tree["left_children"], tree["right_children"], tree["split_indices"]
        limits = np.array(tree["split_conditions"], np.float32).tolist()
        node = 0
        while left[node] != -1:
            node = left[node] if values[split[node]] < limits[node] else right[node]
        total += limits[node]
    return row, total


def _tree(number: int, tree: _Tree, features: int) -> dict[str, object]:
    """Returns a tree whose splits are checked, with everything that follows from them."""
    nodes = len(tree.left_children)
    left, right = np.array(tree.left_children), np.array(tree.right_children)
    lengths = {len(right), len(tree.split_indices), len(tree.split_conditions)}
    _expect(number, lengths | {len(tree.default_left)} == {nodes}, "a node lacks a part")
    inner = np.flatnonzero(left != -1)
    _expect(number, np.array_equal(inner, np.flatnonzero(right != -1)), "a node has one child")
    # Children follow their parent, and each has only one: no path leads back.
    children = np.concatenate((left[inner], right[inner]))
    follow = (children > np.tile(inner, 2)) & (children < nodes)
    _expect(number, bool(follow.all()), "a child does not follow its parent")
    _expect(number, len(np.unique(children)) == len(children), "two nodes have the same child")
    _expect(number, max(tree.split_indices) < features, "a split by a feature beyond the last")
    parents = np.full(nodes, _NO_PARENT)
    parents[children] = np.tile(inner, 2)
    unused = [0.0] * nodes
    return {
        "base_weights": unused,
        **{key: [] for key in _NO_CATEGORIES},
        "default_left": tree.default_left,
        "id": number,
        "left_children": tree.left_children,
        "loss_changes": unused,
        "parents": parents.tolist(),
        "right_children": tree.right_children,
        "split_conditions": tree.split_conditions,
        "split_indices": tree.split_indices,
        "split_type": tree.split_type,
        "sum_hessian": unused,
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(nodes),
            "size_leaf_vector": "1",
        },
    }


_NO_CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")


def _expect(tree: int, holds: bool, problem: str) -> None:
    if not holds:
        raise ValueError(f"tree {tree}: {problem}")


class _Block(BaseModel):
    """A block of which only the fields below are read; what else is there never gets further."""

    model_config = ConfigDict(strict=True, extra="ignore")


_Child = Annotated[int, Field(ge=-1, lt=_MAX_NODES)]
_Float32 = Annotated[float, Field(ge=-3e38, le=3e38, allow_inf_nan=False)]
_Nodes = Field(min_length=1, max_length=_MAX_NODES)


class _Tree(_Block):
    left_children: Annotated[list[_Child], _Nodes]
    right_children: Annotated[list[_Child], _Nodes]
    split_indices: Annotated[list[Annotated[int, Field(ge=0, lt=2**16)]], _Nodes]
    split_conditions: Annotated[list[_Float32], _Nodes]
    default_left: Annotated[list[Annotated[int, Field(ge=0, le=1)]], _Nodes]
    split_type: Annotated[list[Literal[0]], _Nodes]


class _Trees(_Block):
    trees: Annotated[list[_Tree], Field(max_length=_MAX_TREES)]


class _Booster(_Block):
    name: Literal["gbtree"]
    model: _Trees


class _Parameters(_Block):
    base_score: Annotated[str, Field(pattern=r"^\[?-?[0-9.]{1,12}(E-?[0-9]{1,2})?\]?$")]
    boost_from_average: Literal["0", "1"] = "1"
    num_class: Literal["0"]
    num_feature: str
    num_target: Literal["1"]


class _Objective(_Block):
    name: Literal["reg:absoluteerror"]


class _Learner(_Block):
    gradient_booster: _Booster
    learner_model_param: _Parameters
    objective: _Objective


class _File(_Block):
    learner: _Learner
