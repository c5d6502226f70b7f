"""Attention as exporters spell it: queries (2, s, 6, 5), keys and values (2, t, 3, .)."""

from dataclasses import dataclass, replace

import numpy as np
from relax_modules import main_module
from tvm import relax, tirx

op = relax.op
BATCH, HEADS, SHARED, DEPTH, COLUMNS = 2, 6, 3, 5, 7
QUERIES, KEYS = 9, 11
SCALE = 0.25
LOW = float(np.finfo("float32").min)


@dataclass(frozen=True)
class Variant:
    """One spelling."""

    # ``q``, ``k``, ``both``, ``scores``, ``divide``, ``commuted`` or ``none``.
    scale: str = "scores"
    mask: str = "none"  # see :func:`masked`
    guard: str = ""  # ``""``, ``isnan``, ``unequal`` or ``torch``
    # ``four`` axes; ``three``, batch and heads in one, with the scores brought back to four;
    # ``five``, with queries in groups; ``flipped``, as keys times queries.
    layout: str = "four"
    # How keys and values are repeated: ``expand``, ``repeat`` or ``tile``; the latter two only with
    # four axes.
    repeat: str = "expand"
    dtype: str = "float32"  # of the operands; softmax of half types is in float32
    is_symbolic: bool = False  # whether queries and keys are ``n``

    @property
    def lengths(self):
        n = tirx.Var("n", "int64")
        return (n, n) if self.is_symbolic else (QUERIES, KEYS)


VARIANTS = {
    "scale_on_q": Variant("q"),
    "scale_on_k": Variant("k"),
    "scale_on_both": Variant("both"),
    "scale_commuted": Variant("commuted"),
    "scores_divided": Variant("divide"),
    "no_scale": Variant("none"),
    "three_axes": Variant("both", "added", "torch", "three"),
    "five_axes": Variant("q", "added", layout="five"),
    "keys_times_queries": Variant(layout="flipped"),
    "keys_repeated": Variant(repeat="repeat"),
    "added": Variant(mask="added"),
    "added_per_head": Variant(mask="added_per_head"),
    "added_to_keys": Variant("q", "added_to_keys", "isnan"),
    "added_wide": Variant(mask="added_wide"),
    "boolean": Variant(mask="boolean", guard="isnan"),
    "boolean_inverted": Variant(mask="boolean_inverted", guard="unequal"),
    "boolean_low": Variant(mask="boolean_low"),
    "zeros": Variant(mask="zeros"),
    "causal": Variant("both", "causal", "isnan"),
    "causal_low": Variant(mask="causal_low"),
    "causal_where": Variant(mask="causal_where"),
    "causal_positions": Variant(mask="causal_positions", guard="torch"),
    "causal_positions_added": Variant(mask="causal_positions_added"),
    "causal_constants": Variant(mask="causal_constants", guard="torch"),
    "causal_tril": Variant(mask="causal_tril"),
    "causal_triu": Variant(mask="causal_triu"),
    "causal_and_added": Variant(mask="causal_and_added"),
    "half": Variant("divide", "added", "isnan", dtype="float16"),
    "symbolic": Variant("q", "added_to_keys", is_symbolic=True),
    "symbolic_causal": Variant("both", "causal_positions", "isnan", "three", is_symbolic=True),
    "symbolic_tril": Variant("scores", "causal_tril", is_symbolic=True),
}


def plain(variant):
    """The same attention in the spelling that all are brought to."""
    return replace(variant, scale="q", layout="five", guard="isnan" if variant.guard else "")


def build(variant, change=None):
    """A function of a variant; ``change`` is what a near miss does differently."""
    s, t = variant.lengths
    types = [
        relax.TensorType((BATCH, s, HEADS, DEPTH), variant.dtype),
        relax.TensorType((BATCH, t, SHARED, DEPTH), variant.dtype),
        relax.TensorType((BATCH, t, SHARED, COLUMNS), variant.dtype),
        *mask_types(variant, s, t),
    ]
    params = [relax.Var(f"x{i}", ty) for i, ty in enumerate(types)]

    def result(emit, *_):
        return _attention(emit, variant, change, *params)

    return main_module(params, result)


def _attention(emit, variant, change, q, k, v, *masks):
    s, t = variant.lengths if not variant.is_symbolic else (q.ty.shape[1], k.ty.shape[1])
    groups = HEADS // SHARED

    def number(value, like):
        return relax.const(value, str(like.ty.dtype.dtype))

    def scaled(x, value):
        return emit(op.multiply(x, number(value, x)))

    q, k, v = (emit(op.permute_dims(x, [0, 2, 1, 3])) for x in (q, k, v))
    if variant.layout != "five":
        k, v = (_repeated(emit, x, variant.repeat, groups) for x in (k, v))
    if variant.scale in ("q", "both"):
        q = scaled(q, SCALE if variant.scale == "q" else SCALE**0.5)
    if variant.layout == "three":
        q = emit(op.reshape(q, (BATCH * HEADS, s, DEPTH)))
        k = emit(op.reshape(k, (BATCH * HEADS, t, DEPTH)))
    if variant.layout == "five":
        q = emit(op.reshape(q, (BATCH, SHARED, groups, s, DEPTH)))
        k, v = (emit(op.expand_dims(x, 2)) for x in (k, v))
    rank = len(k.ty.shape)
    flip = [*range(rank - 2), rank - 1, rank - 2]
    if variant.layout == "flipped":
        turned = emit(op.permute_dims(q, flip))
        scores = emit(op.permute_dims(emit(op.matmul(k, turned)), flip))
    else:
        turned = emit(op.permute_dims(k, flip))
        if variant.scale in ("k", "both"):
            turned = scaled(turned, SCALE if variant.scale == "k" else SCALE**0.5)
        scores = emit(op.matmul(q, turned))
    if variant.layout in ("three", "five"):
        scores = emit(op.reshape(scores, (BATCH, HEADS, s, t)))
    if variant.dtype == "float16":
        scores = emit(op.astype(scores, "float32"))
    if variant.scale == "scores":
        scores = scaled(scores, SCALE)
    elif variant.scale == "commuted":
        scores = emit(op.multiply(number(SCALE, scores), scores))
    elif variant.scale == "divide":
        scores = emit(op.divide(scores, number(1 / SCALE, scores)))
    scores = masked(emit, variant, scores, *masks)
    scores = emit(op.tanh(scores)) if change == "bent" else scores
    axis = -2 if change == "axis" else -1
    weights = emit(op.nn.softmax(scores, axis))
    weights = _guarded(emit, variant.guard, scores, weights, change)
    if change == "scaled":
        weights = scaled(weights, 0.5)
    if variant.dtype == "float16":
        weights = emit(op.astype(weights, "float16"))
    if variant.layout == "three":
        weights = emit(op.reshape(weights, (BATCH * HEADS, s, t)))
        v = emit(op.reshape(v, (BATCH * HEADS, t, COLUMNS)))
    if variant.layout == "five":
        weights = emit(op.reshape(weights, (BATCH, SHARED, groups, s, t)))
    if change == "transposed":
        weights = emit(op.permute_dims(weights, flip))
    if variant.layout == "flipped":
        v, weights = (emit(op.permute_dims(x, flip)) for x in (v, weights))
        result = emit(op.permute_dims(emit(op.matmul(v, weights)), flip))
    else:
        result = emit(op.matmul(weights, v))
    result = emit(op.reshape(result, (BATCH, HEADS, s, COLUMNS)))
    return emit(op.permute_dims(result, [0, 2, 1, 3]))


def _repeated(emit, x, how, groups):
    if how == "repeat":
        return emit(op.repeat(x, groups, 1))
    batch, shared, length, elements = x.ty.shape
    wide = emit(op.expand_dims(x, 2))
    wide = emit(op.broadcast_to(wide, (batch, shared, groups, length, elements)))
    return emit(op.reshape(wide, (batch, shared * groups, length, elements)))


def _guarded(emit, guard, scores, weights, change):
    if not guard:
        return weights
    zero = relax.const(0.0, str(weights.ty.dtype.dtype))
    if guard == "isnan":
        return emit(op.where(emit(op.isnan(weights)), zero, weights))
    if guard == "unequal":
        dead = emit(op.logical_not(emit(op.not_equal(weights, weights))))
        return emit(op.where(dead, weights, zero))
    tested = emit(op.add(scores, zero)) if change == "other_scores" else scores
    dead = emit(op.equal(tested, relax.const(-np.inf, "float32")))
    alive = emit(op.astype(emit(op.logical_not(dead)), "int8"))
    axis = -2 if change == "guard_axis" else -1
    rows = emit(op.astype(emit(op.max(alive, axis=axis, keepdims=True)), "bool"))
    zeros = emit(op.full_like(weights, zero))
    return emit(op.where(emit(op.logical_not(rows)), zeros, weights))


def mask_types(variant, s, t):
    """Types of the masks that are parameters."""
    shapes = {
        "added": (1, 1, s, t),
        "causal_and_added": (1, 1, s, t),
        "added_per_head": (1, HEADS, s, t),
        "added_to_keys": (BATCH, 1, 1, t),
        "added_wide": (BATCH, 1, 1, t),
        "boolean": (BATCH, 1, s, t),
        "boolean_inverted": (s, t),
        "boolean_low": (BATCH, 1, 1, t),
    }
    if variant.mask not in shapes:
        return []
    dtype = "bool" if variant.mask.startswith("boolean") else "float32"
    return [relax.TensorType(shapes[variant.mask], dtype)]


def masked(emit, variant, scores, *masks):
    """Scores with a mask, which is written as its name says."""
    kind, (_, _, s, t) = variant.mask, scores.ty.shape

    def const(array, dtype="float32"):
        return relax.const(np.asarray(array), dtype)

    def where(condition, kept=scores, low=-np.inf):
        return emit(op.where(condition, kept, const(low)))

    if kind == "none":
        return scores
    if kind in ("added", "added_per_head", "added_to_keys"):
        return emit(op.add(scores, masks[0]))
    if kind == "added_wide":
        return emit(op.add(emit(op.broadcast_to(masks[0], (BATCH, HEADS, s, t))), scores))
    if kind == "boolean":
        return where(masks[0])
    if kind == "boolean_inverted":
        return emit(op.where(masks[0], const(-np.inf), scores))
    if kind == "boolean_low":
        return where(masks[0], low=LOW)
    if kind == "zeros":
        return emit(op.add(scores, const(np.zeros((1, 1, int(s), int(t))))))
    if kind in ("causal", "causal_low", "causal_where"):
        seen = np.tri(int(s), int(t), dtype=bool)[None, None]
        if kind == "causal_where":
            return where(const(seen, "bool"))
        return emit(op.add(scores, const(np.where(seen, 0, LOW if "low" in kind else -np.inf))))
    if kind == "causal_and_added":
        return emit(op.add(masked(emit, replace(variant, mask="causal"), scores), masks[0]))
    if kind.startswith("causal_positions"):
        rows = emit(op.expand_dims(emit(op.arange(0, s, 1, "int64")), 1))
        keys = emit(op.expand_dims(emit(op.arange(0, t, 1, "int64")), 0))
        seen = emit(op.greater_equal(rows, keys))
        if kind == "causal_positions":
            return where(seen)
        seen = emit(op.reshape(seen, (1, 1, s, t)))
        return emit(op.add(scores, emit(op.where(seen, const(0.0), const(-np.inf)))))
    if kind == "causal_constants":  # positions as an exporter folds them
        rows, keys = np.mgrid[: int(s), : int(t)]
        later = emit(op.subtract(const(keys, "int64"), const(rows, "int64")))
        seen = emit(op.less_equal(later, const(0, "int64")))
        seen = emit(op.logical_and(seen, const(np.ones((int(s), int(t)), bool), "bool")))
        return emit(op.add(scores, emit(op.where(seen, const(0.0), const(-np.inf)))))
    if kind == "causal_tril":
        ones = emit(op.ones((s, t), "float32"))
        hidden = emit(op.equal(emit(op.tril(ones)), const(0.0)))
        return emit(op.where(hidden, const(-np.inf), scores))
    if kind == "causal_triu":
        low = emit(op.full((s, t), const(-np.inf), "float32"))
        return emit(op.add(scores, emit(op.triu(low, 1))))
    raise ValueError(kind)


def inputs(variant, rng, n=8):
    """Random operands and masks; boolean masks hide a whole row."""
    s, t = (n, n) if variant.is_symbolic else (QUERIES, KEYS)
    shapes = [(BATCH, s, HEADS, DEPTH), (BATCH, t, SHARED, DEPTH), (BATCH, t, SHARED, COLUMNS)]
    arrays = [rng.standard_normal(shape).astype(variant.dtype) for shape in shapes]
    for ty in mask_types(variant, s, t):
        shape = tuple(int(d) for d in ty.shape)
        if str(ty.dtype.dtype) == "float32":
            arrays.append(rng.standard_normal(shape).astype("float32"))
            continue
        mask = rng.random(shape) < 0.5
        mask[..., 0] = variant.mask != "boolean_inverted"
        if variant.guard:
            mask[..., -1, :] = variant.mask == "boolean_inverted"
        arrays.append(mask)
    return arrays


def reference(variant, q, k, v, mask=None):
    """In float64, zeros in rows that are hidden completely where there is a guard."""
    groups = HEADS // SHARED
    q, k, v = (x.astype("float64").transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, groups, 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (1 if variant.scale == "none" else SCALE)
    kind = variant.mask
    if kind.startswith("added") or kind == "causal_and_added":
        scores = scores + mask
    elif kind.startswith("boolean"):
        seen = ~mask if kind == "boolean_inverted" else mask
        scores = np.where(seen, scores, LOW if kind == "boolean_low" else -np.inf)
    if kind.startswith("causal"):
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
    if variant.guard:
        weights = np.where(np.isnan(weights), 0, weights)
    return (weights @ v).transpose(0, 2, 1, 3)
