"""The scheduling stage: groups become the kernels that their templates promised."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, tirx
from tvm.ir.transform import Pass, PassContext, Sequential

from ..core.contract.kernel_info import Describe
from ..core.contract.template import Ban
from ..core.contract.tuned import Lookup, untuned
from ..core.current_target import current_target
from ..core.decisions import naming
from ..core.names.source import names_of_callees
from ..core.untouched import has_blocks, is_scheduled
from .single.rules import rules
from .stage.emit import Inspect, emit_groups
from .stage.guard import schedule_function
from .stage.inline_groups import inline_groups, merge_primitives
from .stage.install import install


@tvm.transform.module_pass(opt_level=0, name="ScheduleKernels")
class ScheduleKernels:
    """Make kernels of all groups for the current target, and schedule the other PrimFuncs.

    A template that cannot emit what it claimed loses that claim: the decision ``claim_broken`` is
    recorded, and the region is planned again without it. PrimFuncs that are scheduled already stay
    as they are. Groups that TVM's own FuseOps has made are merged by FuseTIR.

    Parameters
    ----------
    fuse : callable
        Makes the pass that plans operators again, given the claims not to be made again.
    tuned : callable
        Gives the configuration that was measured to be the fastest for a claim, or ``None``.
    describe : callable, optional
        Describes the kernels of a claim for the artifact.
    inspect : callable, optional
        Tells why a configuration's machine code is unfit; others are tried then.
    """

    def __init__(
        self,
        fuse: Callable[[frozenset[Ban]], Pass],
        tuned: Lookup = untuned,
        describe: Describe | None = None,
        inspect: Inspect | None = None,
    ) -> None:
        self._fuse = fuse
        self._tuned = tuned
        self._describe = describe
        self._inspect = inspect

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every group and to every unscheduled PrimFunc over SBlocks."""
        with naming(names_of_callees(mod)):
            return self._scheduled(mod)

    def _scheduled(self, mod: tvm.IRModule) -> tvm.IRModule:
        target = current_target("ScheduleKernels")
        banned: frozenset[Ban] = frozenset()
        while True:
            emitted, broken = emit_groups(mod, target, self._tuned, self._describe, self._inspect)
            mod = install(mod, emitted)
            if not broken:
                break
            again = banned & frozenset(broken.values())
            if again:
                raise RuntimeError(f"a banned claim was made again: {sorted(n for n, _ in again)}")
            banned |= frozenset(broken.values())
            mod = inline_groups(mod, broken)
            mod = Sequential([self._fuse(banned)])(mod)
        mod = relax.transform.DeadCodeElimination()(merge_primitives(mod))
        kinds, check = rules(target)
        for gvar, func in list(mod.functions.items()):
            if isinstance(func, tirx.PrimFunc) and not is_scheduled(func) and has_blocks(func):
                mod.update_func(gvar, schedule_function(gvar.name_hint, func, target, kinds, check))
        return mod
