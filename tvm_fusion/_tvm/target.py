"""The target that TVM's BindTarget gave a function."""

from __future__ import annotations

from tvm import tirx
from tvm.target import codegen


def target_kind(func: tirx.PrimFunc) -> str:
    """Name the kind of a function's target, such as ``llvm``; empty where it has none yet."""
    target = func.attrs.get("target") if func.attrs else None
    return "" if target is None else str(target.kind.name)


def has_feature(func: tirx.PrimFunc, name: str) -> bool:
    """Whether the CPU that a function is for has an instruction set, by LLVM's name of it."""
    return bool(codegen.target_has_features(name, func.attrs["target"]))
