"""Templates with a planted fault, and a model whose groups two of them claim."""

from collections.abc import Callable

import numpy as np
import pytest
import tiny_models
import tvm_ffi
from onnx import TensorProto
from tvm import s_tir, tirx

from tvm_fusion.core.contract import templates
from tvm_fusion.core.contract.template import Claim, Emission, Refusal, Template
from tvm_fusion.ecg.mapping_types.table import MappingType
from tvm_fusion.program.primitive import merged

SHAPE = (6, 8)


class Merged(Template):
    """Takes any group of at most one Many-to-Many operator, and merges its PrimFuncs."""

    name = "merged"

    def claim(self, group, device):
        if sum(op.type is MappingType.MANY_TO_MANY for op in group.members) > 1:
            return Refusal("too_many_anchors", "It has several anchors.")
        return Claim(self, group, 1, group.bytes, sum(op.flops for op in group.members), 64)

    def emit(self, claim, target):
        return Emission.one(merged(claim.group), claim.group)


class Planted(Merged):
    """Takes what holds exp and tanh for less than anybody else, and does something to it."""

    name = "planted"

    def __init__(self, fault: Callable[[tirx.PrimFunc], tirx.PrimFunc]) -> None:
        self.fault = fault

    def claim(self, group, device):
        claim = super().claim(group, device)
        if isinstance(claim, Refusal) or not {"exp", "tanh"} <= {op.title for op in group.members}:
            return Refusal("not_mine", "It has no exp and tanh.")
        return Claim(self, group, 1, 0, 0, 64)

    def emit(self, claim, target):
        return Emission.one(self.fault(merged(claim.group)), claim.group)


def plant(monkeypatch: pytest.MonkeyPatch, fault=None) -> None:
    """Let these templates take the place of the package's."""
    use(monkeypatch, *([] if fault is None else [Planted(fault)]), Merged())


def use(monkeypatch: pytest.MonkeyPatch, *alone: Template) -> None:
    """Let these templates be the only ones."""
    monkeypatch.setattr(templates, "_built_in", {"cpu": alone, "gpu": alone})


def wrong(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Add one to whatever is stored."""

    def add_one(store):
        return tirx.BufferStore(store.buffer, store.value + 1, store.indices)

    return tvm_ffi.structural_map(func, (tirx.BufferStore, add_one), order="post")


def raising(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Fail while kernels are made."""
    raise ValueError("no such schedule")


def aborting(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make a kernel that ends its process."""
    return tirx.PrimFunc(func.params, tirx.Evaluate(tirx.call_extern("int32", "abort")))


def slow(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make a kernel that does its work many times."""
    realize = func.body
    block = realize.block
    again = tirx.Var("again", "int32")
    repeated = tirx.For(again, 0, 200, tirx.ForKind.SERIAL, block.body)
    block = s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        repeated,
        block.init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )
    realize = s_tir.SBlockRealize(realize.iter_values, realize.predicate, block)
    return func.with_body(realize)


def model(rows: int | str = SHAPE[0]):
    """matmul + exp + tanh, matmul + relu, matmul + exp + tanh."""
    generator = np.random.default_rng(0)
    weights = {f"w{i}": (generator.standard_normal((8, 8)) / 4).astype("float32") for i in range(3)}
    nodes = [
        ("MatMul", ["x", "w0"], ["a"]),
        ("Exp", ["a"], ["b"]),
        ("Tanh", ["b"], ["c"]),
        ("MatMul", ["c", "w1"], ["d"]),
        ("Relu", ["d"], ["e"]),
        ("MatMul", ["e", "w2"], ["f"]),
        ("Exp", ["f"], ["g"]),
        ("Tanh", ["g"], ["y"]),
    ]
    shape = [rows, SHAPE[1]]
    return tiny_models.onnx_model(
        nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], weights
    )


def inputs(rows: int = SHAPE[0]) -> dict[str, np.ndarray]:
    data = np.random.default_rng(1).standard_normal((rows, SHAPE[1])).astype("float32")
    return {"x": data}
