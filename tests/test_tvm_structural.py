"""Walks and maps give what those of apache-tvm-ffi give."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvm_fusion._tvm_structural import structural_map, structural_walk

I, J = (ir.Var(name, ir.PrimType("int64")) for name in "ij")
EXPR = (I + J * 3) // 4 + I % 5


def test_walks_visit_the_same_nodes_in_the_same_order():
    for order in ("pre", "post"):
        for kinds in (ir.Var, (tirx.FloorDiv, tirx.FloorMod), ir.Expr):
            ours: list = []
            theirs: list = []
            structural_walk(EXPR, (kinds, ours.append), order=order)
            tvm_ffi.structural_walk(EXPR, (kinds, theirs.append), order=order)
            assert ours and all(a.same_as(b) for a, b in zip(ours, theirs, strict=True))


def test_maps_replace_the_same_nodes():
    callbacks = [(ir.Var, lambda v: J if v.same_as(I) else v), (tirx.FloorMod, lambda m: m.a)]
    ours, theirs = structural_map(EXPR, callbacks), tvm_ffi.structural_map(EXPR, callbacks)
    assert tvm_ffi.structural_equal(ours, theirs)
    assert not tvm_ffi.structural_equal(ours, EXPR)


def test_tvm_ffi_still_looks_types_up_in_every_call(monkeypatch):
    """When this fails, its own functions are quick enough."""
    seen = []
    original = tvm_ffi.core.TypeSchema.from_annotation

    class Schema:
        @staticmethod
        def from_annotation(annotation):
            seen.append(annotation)
            return original(annotation)

    monkeypatch.setattr(tvm_ffi.structural.core, "TypeSchema", Schema)
    for _ in range(2):
        tvm_ffi.structural_walk(EXPR, (ir.Var, lambda _: None))
    assert seen == [ir.Var, ir.Var]
