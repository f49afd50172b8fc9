"""Whether a model of boosted trees is one that XGBoost could have trained.

XGBoost believes what a model file says: an index beyond an array reads other memory, and trees
that lead back into themselves never end. Files of others are checked before it sees them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dse.machine.fits._ubjson import Value, read_ubjson

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OBJECTIVES = ("reg:absoluteerror", "reg:squarederror")
#: Arrays of a tree with an entry a node.
_OF_NODES = (
    "base_weights",
    "default_left",
    "left_children",
    "loss_changes",
    "parents",
    "right_children",
    "split_conditions",
    "split_indices",
    "split_type",
    "sum_hessian",
)
#: Arrays of splits by categories, which tables of measurements do not have.
_EMPTY = ("categories", "categories_nodes", "categories_segments", "categories_sizes")
_MAX_TREES = 100_000
_ROOT_PARENT = 2**31 - 1


def check_trees(content: bytes, features: int) -> None:
    """Checks a model in UBJSON.

    Args:
        content: The model.
        features: Columns that it will be given.

    Raises:
        ValueError: It is no such model, or one that could not be evaluated safely; says why.
    """
    learner = _block(_block(read_ubjson(content), "version", "learner")["learner"])
    _expect(learner["attributes"] == {}, "it has attributes")
    _expect(learner["feature_names"] == [] == learner["feature_types"], "it has names of features")
    parameters = _block(learner["learner_model_param"])
    for name, wanted in (("num_class", 0), ("num_target", 1)):
        found = _number(parameters, name)
        _expect(found == wanted, f"`{name}` is {found}, expected {wanted}")
    found = _number(parameters, "num_feature")
    _expect(found == features, f"it names {features} features but its model has {found}")
    objective = _block(learner["objective"])["name"]
    _expect(objective in _OBJECTIVES, f"its objective is `{str(objective)[:40]}`")
    booster = _block(learner["gradient_booster"], "model", "name")
    _expect(booster["name"] == "gbtree", "it is not made of trees")
    model = _block(booster["model"])
    trees = model["trees"]
    _expect(isinstance(trees, list) and len(trees) <= _MAX_TREES, "it has too many trees")
    assert isinstance(trees, list)
    sizes = _block(model["gbtree_model_param"])
    _expect(_number(sizes, "num_trees") == len(trees), "trees are missing")
    _expect(_number(sizes, "num_parallel_tree") == 1, "it is a forest")
    rounds = _whole(model["iteration_indptr"])
    _expect(np.array_equal(rounds, np.arange(len(trees) + 1)), "its rounds are not one tree each")
    _expect(np.array_equal(_whole(model["tree_info"]), np.zeros(len(trees))), "it has groups")
    _expect(all(len(one) == 0 for one in _lists(model.get("cats"))), "it has categories")
    for tree in trees:
        _check_tree(_block(tree), features)


def _check_tree(tree: dict[str, Value], features: int) -> None:
    sizes = _block(tree["tree_param"])
    nodes = _number(sizes, "num_nodes")
    _expect(_number(sizes, "num_feature") == features, "a tree is of other features")
    _expect(_number(sizes, "size_leaf_vector") == 1, "a leaf has several values")
    _expect(nodes >= 1, "a tree without nodes")
    arrays = {name: _array(tree[name]) for name in _OF_NODES}
    _expect(all(len(one) == nodes for one in arrays.values()), "a node lacks a part")
    _expect(all(len(_array(tree[name])) == 0 for name in _EMPTY), "it splits by categories")
    _expect(not arrays["split_type"].any(), "it splits by categories")
    conditions = arrays["split_conditions"]
    _expect(np.isfinite(conditions).all() and conditions.dtype.kind == "f", "an odd threshold")
    left, right = _whole(arrays["left_children"]), _whole(arrays["right_children"])
    inner = np.flatnonzero(left != -1)
    _expect(np.array_equal(inner, np.flatnonzero(right != -1)), "a node has one child")
    # Children stand behind their parent, and each has one: no way leads back.
    children = np.concatenate((left[inner], right[inner]))
    _expect((children > np.tile(inner, 2)).all() and (children < nodes).all(), "a child is lost")
    _expect(len(np.unique(children)) == len(children), "two nodes have the same child")
    parents = _whole(arrays["parents"])
    _expect(np.array_equal(parents[children], np.tile(inner, 2)), "a parent is not one")
    _expect(parents[0] in (_ROOT_PARENT, -1), "the root has a parent")
    chosen = _whole(arrays["split_indices"])
    _expect(((chosen >= 0) & (chosen < features)).all(), "it splits by a feature beyond the last")


def _expect(holds: object, problem: str) -> None:
    if not holds:
        raise ValueError(problem)


def _block(value: Value, *keys: str) -> dict[str, Value]:
    _expect(isinstance(value, dict), "a block is expected")
    assert isinstance(value, dict)
    _expect(not keys or set(value) == set(keys), f"expected {', '.join(keys)}")
    return value


def _number(block: dict[str, Value], name: str) -> int:
    """Returns a whole number that is written as a word."""
    word = block[name]
    _expect(
        isinstance(word, str) and word.isascii() and word.isdecimal(), f"`{name}` is no number"
    )
    assert isinstance(word, str)
    _expect(len(word) <= 9, f"`{name}` is too large")
    return int(word)


def _array(value: Value) -> NDArray[Any]:
    """Returns an array of numbers; an empty list is one."""
    array = np.asarray(value)
    _expect(array.ndim == 1 and (array.dtype.kind in "iuf" or not len(array)), "no array")
    return array


def _whole(value: Value) -> NDArray[np.int64]:
    array = _array(value)
    _expect(array.dtype.kind in "iu" or not len(array), "an array of whole numbers is expected")
    return array.astype(np.int64)


def _lists(value: Value | None) -> list[Any]:
    if value is None:
        return []
    return [_array(one) for one in _block(value).values()]
