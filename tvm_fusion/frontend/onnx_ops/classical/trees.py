"""Convert forests: all trees of a row are walked down at once, then their leaves are summed.

::

    leaf[n, t]:  node = root[t]                       a task for each row and tree
                 while node is none of the leaves:
                     node = child[node, x[n, feature[node]] <= threshold[node]]
    y[n, c]:     sum over t in order of value[leaf[n, t], c]    a task for each row and target
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax, tirx

from ....core.tir.task_kernel import Local, loop, repeat_while, store, when
from ...operators.task_kernels import emit_kernel
from ...registry import Unsupported
from ...tensor_types import dtype_of
from ..node import Node
from ..registry import register
from .forest import MODES, Forest, by_node_ids, by_positions, numbers
from .scores import (
    chosen,
    column,
    is_above,
    labels,
    of_strings,
    rows,
    transform_of,
    transformed,
    with_second_class,
)

op = relax.op
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": lambda x, y: x <= y,
    "BRANCH_LT": lambda x, y: x < y,
    "BRANCH_GTE": lambda x, y: x >= y,
    "BRANCH_GT": lambda x, y: x > y,
    "BRANCH_EQ": lambda x, y: tirx.EQ(x, y),
    "BRANCH_NEQ": lambda x, y: tirx.NE(x, y),
}


@register("ai.onnx.ml::TreeEnsembleRegressor")
def regressor(node: Node) -> Any:
    """Convert the sum, mean, minimum or maximum of what the trees say."""
    targets = node.attribute("n_targets", 1)
    dtype = _precision(node)
    forest = by_node_ids(node, "target", targets, dtype)
    base = numbers(node, "base_values", dtype)
    if len(base) not in (0, targets):
        raise Unsupported(f"with {len(base)} base values", f"give it {targets}")
    total = _based(node, forest, node.attribute("aggregate_function", "SUM"), base, dtype)
    return node.cast(transformed(node, total, transform_of(node)), "float32")


@register("ai.onnx.ml::TreeEnsemble", since=5)
def ensemble(node: Node) -> Any:
    """Convert TreeEnsemble, which tells inner nodes and leaves apart."""
    dtype = _precision(node)
    forest = by_positions(node, node.attribute("n_targets", 1), dtype)
    aggregate = node.attribute("aggregate_function", 1)
    if not 0 <= aggregate < len(_AGGREGATES):
        raise Unsupported(f"with aggregate_function {aggregate}", "use 0 to 3")
    total = _based(node, forest, _AGGREGATES[aggregate], np.zeros(0), dtype)
    return node.cast(transformed(node, total, transform_of(node)), node.dtype())


@register("ai.onnx.ml::TreeEnsembleClassifier", refuses=of_strings)
def classifier(node: Node) -> Any:
    """Convert votes of the trees: the label of the best class, and all scores.

    How two classes share one column of scores, and which label zero gets, is ONNX Runtime's.
    """
    classes = numbers(node, "classlabels_int64s", "int64")
    node.attribute("classlabels_strings")
    dtype = _precision(node)
    forest = by_node_ids(node, "class", len(classes), dtype)
    base = numbers(node, "base_values", dtype)
    transform = transform_of(node)
    scores, is_present = _scores(node, forest, "SUM", dtype)
    if len(classes) == 2:
        label, result = _two_classes(node, forest, scores, is_present, base, classes, transform)
    else:
        label, result = _several_classes(node, scores, is_present, base, classes, transform)
    return [label, node.cast(result, "float32")]


def _two_classes(
    node: Node,
    forest: Forest,
    scores: Any,
    is_present: Any,
    base: np.ndarray,
    classes: np.ndarray,
    transform: str,
) -> tuple[Any, Any]:
    """Find the label and both scores.

    Trees that only speak of the first class give one number, from which both scores are made;
    whatever is absent is 0, base values or not.
    """
    if len(base) > 2:
        raise Unsupported(f"with {len(base)} base values", "give it at most 2")
    kind = dtype_of(scores)
    first, second = column(node, scores, 0), column(node, scores, 1)
    has_first, has_second = (_presence(node, is_present, place) for place in (0, 1))
    zero = node.emit(op.zeros_like(first))
    if len(base) == 2:
        summed = node.emit(op.add(first, relax.const(base[1], kind)))
        alone = node.emit(op.add(first, relax.const(base[0], kind)))
        first = _where(node, has_second, node.emit(op.negative(summed)), alone)
        second = _where(node, has_second, summed, zero)
    elif len(base) == 1:
        first = node.emit(op.add(first, relax.const(base[0], kind)))
    first, second = _where(node, has_first, first, zero), _where(node, has_second, second, zero)
    decisive = _where(node, has_second, second, first)
    # As ONNX Runtime has it: only trees of one class choose from the classes that are given.
    said = np.unique(np.nonzero(forest.is_present)[1])
    is_probability = len(said) == 1 and bool((forest.values >= 0).all())
    pair = classes if len(said) == 1 else np.array([0, 1])
    is_second = node.emit(is_above(decisive, 0.5 if is_probability else 0.0))
    label = chosen(node, is_second, int(pair[1]), int(pair[0]))
    both = transformed(node, op.concat([first, second], -1), transform)
    if len(base) == 2 or has_second is True:
        return label, both
    if transform == "PROBIT":
        raise Unsupported("with PROBIT of one column for two classes", "use NONE")
    if len(base) == 1 and len(said) == 2:
        raise Unsupported("with one base value for two classes", "give it two")
    expanded = with_second_class(node, first, transform, is_probability)
    return label, _where(node, has_second, both, expanded)


def _several_classes(
    node: Node,
    scores: Any,
    is_present: Any,
    base: np.ndarray,
    classes: np.ndarray,
    transform: str,
) -> tuple[Any, Any]:
    """Find the label of the best of the classes that trees speak of, and all scores."""
    if len(base) not in ((0, 1) if len(classes) == 1 else (0, len(classes))):
        raise Unsupported(f"with {len(base)} base values", f"give it {len(classes)}")
    if len(base):
        scores = node.emit(op.add(scores, relax.const(base, dtype_of(scores))))
    if len(classes) == 1:
        label = chosen(node, node.emit(is_above(scores, 0.0)), 1, 0)
        return label, transformed(node, scores, transform)
    best = scores
    if not len(base) and is_present is not None:
        lowest = relax.const(float(np.finfo(dtype_of(scores)).min), dtype_of(scores))
        best = node.emit(op.where(_as_mask(node, is_present), scores, lowest))
    label = labels(node, node.emit(op.argmax(best, -1)), classes)
    return label, transformed(node, scores, transform)


def _presence(node: Node, is_present: Any, place: int) -> Any:
    """Tell whether trees speak of a target: True, False, or a column for each row."""
    if is_present is None:
        return True
    if isinstance(is_present, np.ndarray):
        return bool(is_present[place])
    return node.emit(op.astype(column(node, is_present, place), "bool"))


def _where(node: Node, condition: Any, yes: Any, no: Any) -> Any:
    if isinstance(condition, bool):
        return yes if condition else no
    return node.emit(op.where(condition, yes, no))


def _precision(node: Node) -> str:
    """Return the dtype of thresholds and sums: that of the features if it is as wide."""
    return "float64" if node.dtype() == "float64" else "float32"


def _based(node: Node, forest: Forest, aggregate: str, base: np.ndarray, dtype: str) -> Any:
    """Aggregate what the trees of a regressor say, and add base values.

    A target that no tree speaks of is 0, base value or not, as ONNX Runtime has it.
    """
    total, is_present = _scores(node, forest, aggregate, dtype)
    if len(base):
        total = node.emit(op.add(total, relax.const(base, dtype)))
    if is_present is None or not len(base):
        return total
    return node.emit(op.where(_as_mask(node, is_present), total, op.zeros_like(total)))


def _as_mask(node: Node, is_present: Any) -> Any:
    if isinstance(is_present, np.ndarray):
        return relax.const(is_present, "bool")
    return node.emit(op.astype(is_present, "bool"))


def _scores(node: Node, forest: Forest, aggregate: str, dtype: str) -> tuple[Any, Any]:
    """Walk down all trees and aggregate their leaves.

    Returns
    -------
    (Expr, None or numpy.ndarray or Expr)
        Scores [rows, targets], absent ones 0, and which of them are present: None for all, a bool
        for each target where it is the same for all rows, or uint8 [rows, targets].
    """
    if aggregate not in _AGGREGATES:
        raise Unsupported(f"with aggregate_function {aggregate}", f"use {', '.join(_AGGREGATES)}")
    x = rows(node, dtype)
    own = forest.leaves()
    said = np.array([forest.is_present[leaves].all(0) for leaves in own])
    ever = np.array([forest.is_present[leaves].any(0) for leaves in own])
    always = said.any(0)
    is_known = bool((always == ever.any(0)).all())
    is_one = bool((said == ever).all() and (said.sum(1) == 1).all())
    if is_one:  # each tree speaks of one target: the trees of a target lie next to each other
        order = np.argsort(said.argmax(1), kind="stable")
        forest = replace(forest, roots=forest.roots[order])
    leaf = _leaves(node, x, forest, dtype)
    scores, count = _aggregated(node, leaf, forest, said if is_one else None, aggregate, is_known)
    if aggregate == "AVERAGE":
        size = relax.const(float(len(forest.roots)), dtype)
        scores = node.emit(op.divide(scores, size))
    if not is_known:
        return scores, count
    return scores, None if always.all() else always


def _leaves(node: Node, x: Any, forest: Forest, dtype: str) -> Any:
    """Find the leaf of each row in each tree: int32 [rows, trees]."""
    is_leaf = forest.feature_ids < 0
    modes = np.unique(forest.modes[~is_leaf])
    if not len(modes):  # trees of one leaf each
        modes = np.unique(forest.modes)
    has_missing = bool(forest.missing[~is_leaf].any()) and "float" in node.dtype()
    tables = [
        relax.const(forest.roots, "int32"),
        relax.const(forest.feature_ids, "int32"),
        relax.const(forest.thresholds, dtype),
        relax.const(forest.children, "int32"),
    ]
    if len(modes) > 1:
        tables.append(relax.const(forest.modes, "int32"))
    if has_missing:
        tables.append(relax.const(forest.missing.astype("uint8"), "uint8"))

    def body(n: Any, t: Any, x: Any, roots: Any, features: Any, *buffers: Any) -> None:
        thresholds, children, *rest, leaf = buffers
        at = Local("int32", roots[t])
        with repeat_while(features[at.value] >= 0):
            value, threshold = x[n, features[at.value]], thresholds[at.value]
            goes = _COMPARE[MODES[int(modes[0])]](value, threshold)
            for mode in modes[1:]:
                other = _COMPARE[MODES[int(mode)]](value, threshold)
                goes = tirx.Select(tirx.EQ(rest[0][at.value], int(mode)), other, goes)
            if has_missing:
                is_nan = tirx.And(tirx.NE(value, value), rest[-1][at.value] > 0)
                goes = tirx.Or(goes, is_nan)
            at.set(children[at.value, tirx.Cast("int32", goes)])
        store(leaf, [n, t], children[at.value, 0])

    batch, trees = next(iter(x.ty.shape)), len(forest.roots)
    inputs, outputs = [x, *tables], [([batch, trees], "int32")]
    (found,) = emit_kernel(node.builder, "forest_leaves", [batch, trees], inputs, outputs, body)
    return found


def _aggregated(
    node: Node,
    leaf: Any,
    forest: Forest,
    said: np.ndarray | None,
    aggregate: str,
    is_known: bool,
) -> tuple[Any, Any]:
    """Aggregate leaves in the order of the trees: [rows, targets], and whether there were any.

    Parameters
    ----------
    leaf : Expr
        int32 [rows, trees].
    forest
        The trees, sorted by targets where each speaks of one.
    said
        bool [trees, targets], where each tree speaks of one target.
    is_known
        Whether it is known which targets are present.
    """
    trees, targets = len(forest.roots), forest.values.shape[1]
    dtype = str(forest.values.dtype)
    values = forest.values if said is None else forest.values.sum(1)
    tables = [relax.const(values, dtype)]
    if said is not None:
        ends = np.cumsum([0, *said.sum(0)])
        tables.append(relax.const(ends.astype("int64"), "int64"))
    if said is None and not (is_known and forest.is_present.all()):
        tables.append(relax.const(forest.is_present.astype("uint8"), "uint8"))
    is_partial = said is None and len(tables) > 1
    is_sum = aggregate in ("SUM", "AVERAGE")

    def body(n: Any, c: Any, leaf: Any, values: Any, *buffers: Any) -> None:
        total, count = Local(dtype, 0.0), Local("int32", 0)
        start, end = (0, trees) if said is None else (buffers[0][c], buffers[0][c + 1])
        with loop(start, end) as t:
            row = leaf[n, t]
            value = values[row] if said is not None else values[row, c]
            there = buffers[0][row, c] > 0 if is_partial else tirx.IntImm("bool", 1)
            if is_sum:
                total.set(total.value + value)
            else:
                ahead = value < total.value if aggregate == "MIN" else value > total.value
                with when(tirx.And(there, tirx.Or(tirx.EQ(count.value, 0), ahead))):
                    total.set(value)
            if not is_sum or not is_known:
                count.set(tirx.Select(there, 1, count.value))
        outputs = buffers[len(tables) - 1 :]
        store(outputs[0], [n, c], total.value)
        if not is_known:
            store(outputs[1], [n, c], tirx.Cast("uint8", count.value))

    batch = next(iter(leaf.ty.shape))
    tasks = [batch, targets]
    outputs = [(tasks, dtype), (tasks, "uint8")][: 1 if is_known else 2]
    made = emit_kernel(node.builder, "forest_scores", tasks, [leaf, *tables], outputs, body)
    return made[0], None if is_known else made[1]
