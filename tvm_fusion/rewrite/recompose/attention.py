"""Attention: two products with softmax between, in all forms that exporters write."""

from __future__ import annotations

from tvm import relax

from .attention_reader import AttentionReader
from .pattern import Match, Mismatch, Pattern
from .scores import read_scores, read_weights
from .view import View


class Attention(Pattern):
    """``softmax(scale * q @ k' + mask) @ v = attention(q, k, v)``.

    Relax has an operator for it, which knows neither guards nor masks by position and becomes the
    same products again. So attention is written in one way, whatever the form was: the scale,
    one number, on the queries; every movement on the operands; masks as small as they are, causal
    ones as comparisons of positions; queries of all heads that share keys in one product, instead
    of repeated keys.
    """

    name = "attention"
    roots = frozenset({"matmul"})
    anchors = frozenset({"nn.softmax"})
    template = "attention"

    def match(self, view: View, root: relax.Var) -> Match | Mismatch | None:
        """Find softmax behind one operand of a product, and a product behind softmax."""
        call = view.value(root)
        for side in (0, 1):
            weights = read_weights(view, call.args[side])
            if weights is None:
                continue
            scores = read_scores(view, weights.softmax.args[0])
            if scores is None:
                return None
            product, steps = scores
            reader = AttentionReader(view, root, side, weights, product, steps)
            found = reader.read()
            if isinstance(found, str):
                return Mismatch(root, found)
            if found is None:
                return None
            parts = found.build_parts if found.has_half_values else None
            return Match(found.leaves, found.build, str(found), parts)
        return None
