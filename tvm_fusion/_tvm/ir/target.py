"""The target that TVM's BindTarget gave a function."""

from functools import lru_cache

from tvm import tirx
from tvm.target import Target, codegen


def target_kind(func: tirx.PrimFunc) -> str:
    """Name the kind of a function's target, such as ``llvm``; empty where it has none yet."""
    target = func.attrs.get("target") if func.attrs else None
    return "" if target is None else str(target.kind.name)


def has_llvm_feature(func: tirx.PrimFunc, name: str) -> bool:
    """Whether LLVM compiles a function for a CPU with an instruction set, by LLVM's name."""
    return has_feature(func.attrs["target"], name)


@lru_cache(maxsize=256)  # LLVM reads its tables anew: 0.1 ms, asked of each operator
def has_feature(target: Target, name: str) -> bool:
    """Whether LLVM compiles for a CPU with an instruction set, by LLVM's name."""
    return bool(codegen.llvm_cpu_has_features(name, target))
