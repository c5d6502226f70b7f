"""Walks and maps give what those of apache-tvm-ffi give."""

from types import SimpleNamespace

import tvm_ffi
from tvm import ir, tirx

from tvm_fusion._tvm.ir.structural import structural_map, structural_walk

VAR, OTHER = (ir.Var(name, ir.PrimType("int64")) for name in "ij")
EXPR = (VAR + OTHER * 3) // 4 + VAR % 5


def test_walks_visit_the_same_nodes_in_the_same_order():
    for order in ("pre", "post"):
        for kinds in (ir.Var, (tirx.FloorDiv, tirx.FloorMod), ir.Expr):
            ours: list = []
            theirs: list = []
            structural_walk(EXPR, (kinds, ours.append), order=order)
            tvm_ffi.structural_walk(EXPR, (kinds, theirs.append), order=order)
            assert ours
            assert all(a.same_as(b) for a, b in zip(ours, theirs, strict=True))


def test_maps_replace_the_same_nodes():
    callbacks = [(ir.Var, lambda v: OTHER if v.same_as(VAR) else v), (tirx.FloorMod, lambda m: m.a)]
    ours, theirs = structural_map(EXPR, callbacks), tvm_ffi.structural_map(EXPR, callbacks)
    assert tvm_ffi.structural_equal(ours, theirs)
    assert not tvm_ffi.structural_equal(ours, EXPR)


def test_tvm_ffi_still_looks_types_up_in_every_call(monkeypatch):
    """When this fails, its own functions are quick enough."""
    seen = []
    known = tvm_ffi.core.TypeSchema.from_annotation(ir.Var)

    def look_up(annotation: type) -> tvm_ffi.core.TypeSchema:
        seen.append(annotation)
        return known

    monkeypatch.setattr(
        tvm_ffi.structural.core, "TypeSchema", SimpleNamespace(from_annotation=look_up)
    )
    for _ in range(2):
        tvm_ffi.structural_walk(EXPR, (ir.Var, lambda _: None))
    assert seen == [ir.Var, ir.Var]
