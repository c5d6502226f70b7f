"""The target that TVM's BindTarget gave a function."""

from __future__ import annotations

from tvm import tirx


def target_kind(func: tirx.PrimFunc) -> str:
    """Name the kind of a function's target, such as ``llvm``; empty where it has none yet."""
    target = func.attrs.get("target") if func.attrs else None
    return "" if target is None else str(target.kind.name)
