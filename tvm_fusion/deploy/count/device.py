"""Launches of a PrimFunc on a GPU: the calls of device functions that SplitHostDevice leaves."""

from collections.abc import Sequence

import tvm
from tvm import ir, tirx
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext
from tvm.target import Target

from ..._tvm.ir.pass_context import copied
from ...errors import UserError
from .host import HostWalk, Profile
from .nests import packed_name

# Merging buffers would understate their bytes; neither pass changes what is launched.
_CONFIG = {"tirx.disable_storage_rewrite": True, "tirx.disable_cse_tir": True}


def device_profile(func: tirx.PrimFunc, name: str, target: Target, pipeline: str) -> Profile:
    """Count the launches of one call.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        A scheduled function, its shapes bound to integers where they are known.
    target : tvm.target.Target
        A GPU with a host.
    pipeline
        Name of the registered TIR pipeline that would build it.

    Returns
    -------
    profile : Profile
        Launches by device function, and bytes of global buffers allocated on the host.

    Raises
    ------
    UserError
        The function cannot be lowered for the device: as a rule it has no thread bindings.
    """
    split = SplitFunctions()
    lower = tirx.get_tir_pipeline(pipeline)[0]
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    try:
        with copied(PassContext.current(), _CONFIG, [split]):
            lower(tirx.transform.BindTarget(target)(mod))
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise _unscheduled(name, f"cannot be lowered for {target.kind.name} ({reason})") from error
    return launches(split.functions.get(name, ()), name)


def launches(functions: Sequence[tirx.PrimFunc], name: str) -> Profile:
    """Count the launches of one call of a function that is lowered already.

    Parameters
    ----------
    functions : sequence of tvm.tirx.PrimFunc
        Its host code, as SplitHostDevice left it.

    Returns
    -------
    profile : Profile
        As of :func:`device_profile`; a pipeline that merges buffers understates their bytes.
    """
    walk = _DeviceLaunches(name)
    for func in functions:
        walk.visit(func.body)
    return walk.profile


@pass_instrument
class SplitFunctions:
    """Keeps what SplitHostDevice leaves; a pipeline that treats two dialects runs it twice.

    Attributes
    ----------
    functions : dict of str to list of PrimFunc
        By name, host functions and kernels.
    """

    def __init__(self) -> None:
        self.functions: dict[str, list[tirx.PrimFunc]] = {}

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Keep the functions of a module."""
        if info.name.endswith("SplitHostDevice"):
            for gvar, func in mod.functions.items():
                self.functions.setdefault(gvar.name_hint, []).append(func)


class _DeviceLaunches(HostWalk):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._own: set[tirx.Buffer] = set()

    def is_nest(self, loop: tirx.For) -> bool:
        return False

    def allocate(self, buffer: tirx.Buffer) -> None:
        self._own.add(buffer)
        super().allocate(buffer)

    def store(self, store: tirx.BufferStore) -> None:
        # TVM compiles such a function without a word; the host then writes to device memory.
        if store.buffer not in self._own:
            raise _unscheduled(self.name, f"writes '{store.buffer.name}' from the host")

    def evaluate_call(self, call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name.endswith("call_ffi_kernel"):
            self.profile.launch(str(call.args[0].value))
        elif (library := packed_name(call)) is not None:
            self.profile.launch(library, "library")


def _unscheduled(name: str, found: str) -> UserError:
    return UserError(
        f"PrimFunc '{name}' {found}",
        "a function scheduled for the device",
        "run the target's pipeline before counting",
    )
