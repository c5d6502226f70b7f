"""The bugs that are planted: slips that a reader of the file may overlook."""

from __future__ import annotations

from .planted import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "a cube becomes a square",
        "frontend/normalize/expand_power.py",
        "return relax.op.multiply(scope.emit(relax.op.multiply(x, x)), x)",
        "return relax.op.multiply(x, x)",
    ),
    Bug(
        "a square root for the reciprocal of one",
        "frontend/normalize/expand_power.py",
        "return relax.op.rsqrt(x) if number == -0.5 else None",
        "return relax.op.sqrt(x) if number == -0.5 else None",
    ),
    Bug(
        "any permutation counts as the identity",
        "frontend/normalize/remove_identities.py",
        "[int(axis) for axis in axes] == list(range(len(axes)))",
        "sorted(int(axis) for axis in axes) == list(range(len(axes)))",
    ),
    Bug(
        "every cast is an identity",
        "frontend/normalize/remove_identities.py",
        "elif name in _BY_TYPE and structural_equal(value.args[0].ty, value.ty):",
        "elif name in _BY_TYPE:",
    ),
)
