"""What each PrimFunc launches at given argument shapes, worked out once per structure."""

from collections.abc import Mapping, Sequence

import tvm_ffi
from tvm import ir, tirx
from tvm.target import Target

from .device import device_profile, launches
from .host import Profile
from .nests import nest_profile
from .values import TensorValue

# Host code of PrimFuncs by their names, as SplitHostDevice left it.
Lowered = Mapping[str, Sequence[tirx.PrimFunc]]


class Profiler:
    """Profiles PrimFuncs, once per structure and argument shapes.

    Parameters
    ----------
    target : tvm.target.Target
        Where functions without a target of their own run.
    tir_pipeline
        Name of the registered TIR pipeline that would build them.
    lowered : mapping of str to sequence of PrimFunc
        Those that have been built.
    """

    def __init__(self, target: Target, tir_pipeline: str, lowered: Lowered):
        self._target = target
        self._tir_pipeline = tir_pipeline
        self._lowered = lowered
        self._hashes: dict[str, int] = {}
        self._known: dict[object, tuple[str, Profile]] = {}

    def __call__(self, name: str, func: tirx.PrimFunc, args: Sequence[object]) -> Profile:
        """Return the profile of one call."""
        if name not in self._hashes:
            anonymous = func.without_attr("global_symbol")
            self._hashes[name] = tvm_ffi.structural_hash(anonymous)
        extents = tuple(arg.shape if isinstance(arg, TensorValue) else arg for arg in args)
        key = (self._hashes[name], extents)
        if key not in self._known:
            self._known[key] = (name, self._profile(func, name, args))
        first, profile = self._known[key]
        return profile if first == name else _renamed(profile, first, name)

    def _profile(self, func: tirx.PrimFunc, name: str, args: Sequence[object]) -> Profile:
        target = func.attrs.get("target", self._target) if func.attrs else self._target
        bound = _specialize(func, args)
        if not is_gpu(target):
            return nest_profile(bound, name, target)
        if bound.same_as(func) and name in self._lowered:
            profile = launches(self._lowered[name], name)
            if not profile.hidden_bytes and not profile.caveats:
                return profile
        return device_profile(bound, name, with_host(target), self._tir_pipeline)


def _renamed(profile: Profile, first: str, name: str) -> Profile:
    """Name a structurally equal function's device functions after it."""

    def rename(text: str) -> str:
        return name + text.removeprefix(first) if text.startswith(first) else text

    return Profile(
        {(rename(kernel), kind): calls for (kernel, kind), calls in profile.launches.items()},
        profile.hidden_bytes,
        [rename(caveat) for caveat in profile.caveats],
    )


def _specialize(func: tirx.PrimFunc, args: Sequence[object]) -> tirx.PrimFunc:
    """Bind a function's symbolic extents to those of its arguments, where these are known."""
    bound: dict[ir.Var, object] = {}
    for param, arg in zip(func.params, args, strict=False):
        if isinstance(arg, int):
            bound[param] = tirx.IntImm(str(param.ty.dtype), arg)
        elif isinstance(arg, TensorValue) and arg.shape is not None and _is_symbolic(param):
            bound[param] = _bound_buffer(param, arg.shape)
    return func.specialize(bound) if bound else func


def _is_symbolic(param: ir.Var) -> bool:
    extents = getattr(param.ty, "shape", ())
    return any(not isinstance(extent, tirx.IntImm) for extent in extents)


def _bound_buffer(param: tirx.Buffer, extents: Sequence[int | None]) -> tirx.Buffer:
    # A compound extent cannot be solved for its variables; it follows from the plain ones.
    shape = [
        tirx.IntImm(str(old.ty.dtype), new) if isinstance(old, ir.Var) and new is not None else old
        for old, new in zip(param.shape, extents, strict=True)
    ]
    # TVM's sorts take unaligned buffers.
    return tirx.decl_buffer(shape, param.dtype, param.name, data_alignment=param.data_alignment)


def is_gpu(target: Target) -> bool:
    """Whether a target launches kernels on a device."""
    return "gpu" in target.keys


def with_host(target: Target) -> Target:
    """Return the target with a host to launch from."""
    return target if target.host is not None or not is_gpu(target) else target.with_host("llvm")
