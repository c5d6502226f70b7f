"""Launches of a PrimFunc on a GPU: the calls of device functions that SplitHostDevice leaves."""

from __future__ import annotations

import tvm
from tvm import ir, tirx
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext
from tvm.target import Target

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
    name : str
        Its name.
    target : tvm.target.Target
        A GPU with a host.
    pipeline : str
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
    split = _SplitModules()
    outer = PassContext.current()
    lower = tirx.get_tir_pipeline(pipeline)[0]
    mod = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    try:
        with PassContext(
            opt_level=outer.opt_level,
            required_pass=outer.required_pass,
            disabled_pass=outer.disabled_pass,
            config={**dict(outer.config), **_CONFIG},
            instruments=[split],
        ):
            lower(tirx.transform.BindTarget(target)(mod))
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise _unscheduled(name, f"cannot be lowered for {target.kind.name} ({reason})") from error
    walk = _DeviceLaunches(name)
    for module in split.modules:
        for gvar, lowered in module.functions.items():
            if gvar.name_hint == name:
                walk.visit(lowered.body)
    return walk.profile


@pass_instrument
class _SplitModules:
    """Keeps what SplitHostDevice leaves; a pipeline that treats two dialects runs it twice."""

    def __init__(self) -> None:
        self.modules: list[tvm.IRModule] = []

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name.endswith("SplitHostDevice"):
            self.modules.append(mod)


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
