"""Forests as tables: nodes and leaves of all trees of ai.onnx.ml's tree ensembles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import numpy_helper

from ...registry import Unsupported
from ..node import Node

#: Comparisons of a feature with a node's threshold, by the codes of TreeEnsemble.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
_EQUAL, _MEMBER = MODES.index("BRANCH_EQ"), len(MODES)
_LEAF = -1


@dataclass(frozen=True)
class Forest:
    """All trees, their nodes in one table."""

    roots: np.ndarray  # int32 [trees]: the first node of each
    feature_ids: np.ndarray  # int32 [nodes]: the column that a node compares; -1 of a leaf
    thresholds: np.ndarray  # [nodes]: what it is compared with
    modes: np.ndarray  # int32 [nodes]: places in :data:`MODES`
    missing: np.ndarray  # bool [nodes]: whether NaN takes the true branch
    # int32 [nodes, 2]: the false and the true child; of a leaf its row in ``values``, twice.
    children: np.ndarray
    values: np.ndarray  # [leaves, targets]: what a leaf adds to each target
    is_present: np.ndarray  # bool [leaves, targets]: whether it says anything about that target

    def leaves(self) -> list[np.ndarray]:
        """List the leaves of each tree, as rows of ``values``, by one walk down all trees."""
        owner = np.arange(len(self.roots))
        at = self.roots
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(len(self.feature_ids) + 1):
            is_leaf = self.feature_ids[at] < 0
            found.append((owner[is_leaf], self.children[at[is_leaf], 0]))
            owner, at = np.repeat(owner[~is_leaf], 2), self.children[at[~is_leaf]].reshape(-1)
            if not len(at):
                break
            pairs = np.unique(np.stack([owner, at]), axis=1)  # nodes with two parents
            owner, at = pairs
        else:
            raise Unsupported("with a node below itself", "export the model again")
        trees, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return [rows[trees == tree] for tree in range(len(self.roots))]


def numbers(node: Node, name: str, dtype: str | type = "float32") -> np.ndarray:
    """Read an attribute that is a list or, as ``name`` or ``name_as_tensor``, a tensor."""
    tensor = node.attribute(f"{name}_as_tensor")
    value = node.attribute(name)
    if tensor is not None:
        value = numpy_helper.to_array(tensor)
    elif hasattr(value, "data_type"):
        value = numpy_helper.to_array(value)
    return np.array([] if value is None else value, dtype)


def check(forest: Forest, node: Node) -> Forest:
    """Return a forest whose nodes are in order: each refers to what there is."""
    columns = node.shape()[-1]
    most = int(forest.feature_ids.max(initial=-1))
    if isinstance(columns, int) and most >= columns:
        raise Unsupported(
            f"that compares feature {most} of {columns}", f"give it {most + 1} features"
        )
    if not isinstance(columns, int):
        raise Unsupported("of a symbolic number of features", "bind the number of features")
    inner, count = forest.feature_ids >= 0, len(forest.feature_ids)
    below, rows = forest.children[inner], forest.children[~inner]
    if (below < 0).any() or (below >= count).any() or (rows >= len(forest.values)).any():
        raise Unsupported("with a child that is not a node", "export the model again")
    return forest


def by_node_ids(node: Node, kind: str, targets: int, dtype: str) -> Forest:
    """Read the attributes of TreeEnsembleClassifier and TreeEnsembleRegressor.

    Parameters
    ----------
    kind
        How the attributes of the leaves begin: ``class`` or ``target``.
    targets
        How many numbers there are for a row.
    dtype
        In which features are compared.
    """
    trees, ids = (numbers(node, f"nodes_{name}", "int64") for name in ("treeids", "nodeids"))
    node.attribute("nodes_hitrates"), node.attribute("nodes_hitrates_as_tensor")
    names = [
        bytes(name).decode(errors="backslashreplace") for name in node.attribute("nodes_modes")
    ]
    unknown = {*names} - {*MODES, "LEAF"}
    if unknown:
        raise Unsupported(f"with the mode {min(unknown)}", f"use {', '.join(MODES)}")
    modes = np.array([_LEAF if name == "LEAF" else MODES.index(name) for name in names], "int32")
    place = {key: i for i, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    is_leaf = modes == _LEAF

    def places(tree_ids: np.ndarray, node_ids: np.ndarray) -> np.ndarray:
        keys = zip(tree_ids.tolist(), node_ids.tolist(), strict=True)
        found = np.array([place.get(key, _LEAF) for key in keys], "int32")
        if (found < 0).any():
            raise Unsupported("with a child that is not a node", "export the model again")
        return found

    children = np.zeros((len(ids), 2), "int32")
    for side, name in enumerate(("nodes_falsenodeids", "nodes_truenodeids")):
        given = numbers(node, name, "int64")
        children[~is_leaf, side] = places(trees[~is_leaf], given[~is_leaf])
    row = np.cumsum(is_leaf) - 1
    children[is_leaf] = row[is_leaf, None]
    values = np.zeros((int(is_leaf.sum()), targets), dtype)
    is_present = np.zeros(values.shape, bool)
    at = places(*(numbers(node, f"{kind}_{name}", "int64") for name in ("treeids", "nodeids")))
    columns = numbers(node, f"{kind}_ids", "int64")
    if (columns < 0).any() or (columns >= targets).any():
        raise Unsupported(f"with a target outside of {targets}", "export the model again")
    on_leaf = is_leaf[at]  # ONNX Runtime takes no weights of other nodes
    where = row[at][on_leaf], columns[on_leaf]
    values[where] = numbers(node, f"{kind}_weights", dtype)[on_leaf]
    is_present[where] = True
    if int(is_present.sum()) != int(on_leaf.sum()):
        raise Unsupported("with two weights of one leaf for one target", "add them up")
    if targets == 1 and not is_present.all():
        raise Unsupported("with a leaf that has no weight", "give it the weight 0")
    missing = numbers(node, "nodes_missing_value_tracks_true", "int64")
    forest = Forest(
        np.flatnonzero(np.diff(trees, prepend=trees[:1] - 1)).astype("int32"),
        np.where(is_leaf, _LEAF, numbers(node, "nodes_featureids", "int32")).astype("int32"),
        numbers(node, "nodes_values", dtype),
        np.where(is_leaf, 0, modes).astype("int32"),
        missing == 1 if len(missing) else np.zeros(len(ids), bool),
        children,
        values,
        is_present,
    )
    return check(forest, node)


def by_positions(node: Node, targets: int, dtype: str) -> Forest:
    """Read the attributes of TreeEnsemble, which tells inner nodes and leaves apart.

    A node that asks for one of several values becomes a chain of nodes that each compare one.
    """
    node.attribute("nodes_hitrates")
    modes = numbers(node, "nodes_modes", "int32")
    if len(modes) and not (0 <= modes.min() <= modes.max() <= _MEMBER):
        raise Unsupported(f"with the mode {modes.max()}", f"use 0 to {_MEMBER}")
    count = len(modes)
    splits = numbers(node, "nodes_splits", dtype)
    features = numbers(node, "nodes_featureids", "int32")
    missing = numbers(node, "nodes_missing_value_tracks_true", "int64")
    missing = missing == 1 if len(missing) else np.zeros(count, bool)
    weights = numbers(node, "leaf_weights", dtype)
    columns = numbers(node, "leaf_targetids", "int64")
    if (columns < 0).any() or (columns >= targets).any():
        raise Unsupported(f"with a target outside of {targets}", "export the model again")
    children = np.stack(
        [
            numbers(node, f"nodes_{side}nodeids", "int32")
            + np.where(numbers(node, f"nodes_{side}leafs", "int64") != 0, count, 0)
            for side in ("false", "true")
        ],
        axis=-1,
    )
    values = np.zeros((len(weights), targets), dtype)
    is_present = np.zeros(values.shape, bool)
    where = np.arange(len(weights)), columns
    values[where], is_present[where] = weights, True
    sets = iter(_split(numbers(node, "membership_values", dtype)))
    start = count + len(weights)
    chained: list[tuple[Any, ...]] = []  # feature, member, missing, false child, true child
    for place in np.flatnonzero(modes == _MEMBER):
        members = next(sets, splits[:0])
        if not len(members):
            raise Unsupported("with a node of no members", "leave that node out")
        otherwise, then = children[place]
        modes[place], splits[place] = _EQUAL, members[0]
        for member in members[1:]:
            below = start + len(chained) + 1
            chained.append((features[place], member, missing[place], below, then))
        if len(members) > 1:
            children[place, 0] = start + len(chained) - len(members) + 1
            chained[-1] = (*chained[-1][:3], otherwise, then)
    more = [np.array(part) for part in zip(*chained, strict=True)] or [np.zeros(0)] * 5
    rows, none = np.arange(len(weights), dtype="int32"), np.zeros(len(weights))
    forest = Forest(
        numbers(node, "tree_roots", "int32"),
        np.concatenate([features, none + _LEAF, more[0]]).astype("int32"),
        np.concatenate([splits, none, more[1]]).astype(dtype),
        np.concatenate([modes, none, np.full(len(chained), _EQUAL)]).astype("int32"),
        np.concatenate([missing, none, more[2]]).astype(bool),
        np.concatenate([children, np.stack([rows, rows], -1), np.stack(more[3:], -1)]).astype(
            "int32"
        ),
        values,
        is_present,
    )
    return check(forest, node)


def _split(values: np.ndarray) -> Sequence[np.ndarray]:
    """Split sets of members, each of which ends in NaN."""
    ends = np.flatnonzero(np.isnan(values))
    return [part[~np.isnan(part)] for part in np.split(values, ends + 1)]
