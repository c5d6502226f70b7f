"""A model with its plans, and plans made into kernels: what `explain` and `bisect` start from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import Pass, PassContext, Sequential

from ..config import Config, FusionConfig, configure
from ..core.names.inherit import inheriting
from ..core.progress import report
from ..core.untouched import on_rewritable
from ..deploy.build.lower import LowerToVM
from ..device import TargetSpec, parse
from ..device.plain_cpu import warn_of_plain_cpu
from ..errors import UserError
from ..frontend import Imported, import_model
from ..fusion.fuse import apply_plans, plan_module
from ..fusion.planning.plan import Plan
from ..fusion.profile import Profile, profiling
from ..measure.profiling import profiled
from ..parallel.shard import shard
from ..pipeline import STAGES, stage

Plans = Mapping[relax.DataflowBlock, Plan]


@dataclass(frozen=True)
class PlannedModel:
    """A model as the fusion stage takes it, with the plan of every dataflow block."""

    spec: TargetSpec  # what kernels are for
    config: FusionConfig  # the user's options
    imported: Imported  # the model as it came in
    mod: tvm.IRModule  # legalised, all code in dataflow blocks
    plans: Plans  # in the order of functions and blocks
    functions: Mapping[relax.DataflowBlock, str]  # name of the function that each block is in
    database: Profile | None = None  # the profile database, which decides about layouts, too

    @property
    def main(self) -> str:
        """Name of the function that is counted and run."""
        return next(iter(self.imported.signatures))

    @property
    def profile(self) -> dict[str, int]:
        """What the profile database was asked so far, as its counts; empty where there is none."""
        return {} if self.database is None else self.database.counts()

    def scheduled(self, plans: Plans) -> tvm.IRModule:
        """Write plans into the module and run the stages behind fusion.

        Parameters
        ----------
        plans : mapping of DataflowBlock to Plan
            The model's own, or variants of them over the same graphs.

        Returns
        -------
        tvm.IRModule
            ``call_tir`` on scheduled PrimFuncs.
        """

        @tvm.transform.module_pass(opt_level=0, name="ApplyPlans")
        def apply(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
            return apply_plans(mod, dict(plans))

        with profiling(self.database), self.spec.tvm_target(), self.context():
            return Sequential([on_rewritable(apply), *_stages(self.config)[1]])(self.mod)

    def lowered(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Lower a scheduled module for the virtual machine."""
        with self.spec.tvm_target(), self.context():
            return Sequential([LowerToVM()])(mod)

    def context(self) -> PassContext:
        """Return the options under which passes run."""
        return PassContext(config={"relax.backend.use_cuda_graph": self.config.cuda_graph})


def plan_model(model: Any, target: Any = "cpu", config: Config | None = None) -> PlannedModel:
    """Import a model and plan its groups, as a compilation does.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX or ``.pt2`` file.
    target : str, dict or tvm.target.Target
        See :func:`tvm_fusion.device.parse`. It need not be present.

    Returns
    -------
    PlannedModel

    Raises
    ------
    UserError
        For a model, target or option that cannot be compiled.
    """
    report("starting the compiler")
    config = configure(config)
    spec = parse(target).permitting(config.flags)
    config = config.for_kind(spec.kind)
    warn_of_plain_cpu(target)
    if len(spec.archs) > 1:
        raise UserError(
            f"target {spec.text!r} names {len(spec.archs)} architectures, each with a plan",
            "one",
            f"ask for {spec.each[0].text}, then for the next",
        )
    tvm_target = spec.tvm_target()
    plans: dict[relax.DataflowBlock, Plan] = {}
    functions: dict[relax.DataflowBlock, str] = {}

    @tvm.transform.module_pass(opt_level=0, name="OnlyPlan")
    def only_plan(mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        plans.update(plan_module(mod, tvm_target))
        for gvar, func in mod.functions.items():
            if isinstance(func, relax.Function):
                functions.update({b: gvar.name_hint for b in func.body.blocks if b in plans})
        return mod

    with profiled(config, spec) as profile, tvm_target:
        passes, _ = _stages(config)
        report("importing")
        imported = import_model(model, config)
        if not imported.signatures:
            raise UserError(
                f"{imported.source} has no function from tensors to tensors",
                advice="give it one, such as main, whose parameters and results are tensors",
            )
        if config.workers > 1:  # the first one's part: the others run the same kernels
            parts = shard(imported, config.workers, config.shards, config.writes, spec.device).parts
            imported = parts[0]
        to_dataflow = on_rewritable(*inheriting(relax.transform.ConvertToDataflow(min_size=1)))
        mod = Sequential([*passes, to_dataflow])(imported.mod)
        Sequential([on_rewritable(only_plan)])(mod)
    return PlannedModel(spec, config, imported, mod, plans, functions, profile)


def _stages(config: FusionConfig) -> tuple[list[Pass], list[Pass]]:
    """List the passes before and behind fusion."""
    names = [name for name, _ in STAGES]
    position = names.index("fusion")
    before, behind = names[:position], names[position + 1 :]
    return [stage(name, config) for name in before], [stage(name, config) for name in behind]
