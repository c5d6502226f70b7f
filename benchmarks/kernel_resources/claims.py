"""The distinct groups of graphs, with what their templates claim and emit."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import tvm
from tvm import tirx

from benchmarks import zoo
from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.contract.template import TEMPLATE, Claim, Refusal
from tvm_fusion.core.contract.templates import template
from tvm_fusion.device import TargetSpec
from tvm_fusion.frontend import import_model
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.schedule.stage.emit import group_of, is_group

STAGES = (
    transform.NormalizeImport,
    transform.Rewrite,
    transform.Legalize,
    transform.FuseOperators,
)


@dataclass(frozen=True)
class ClaimedGroup:
    """A group that some graphs have."""

    claim: Claim  # what the plan's template claims
    functions: tuple[tirx.PrimFunc, ...]  # what it emits
    graphs: list[str] = field(default_factory=list)  # names of the graphs


class Survey:
    """Collects the groups of graphs, equal ones once.

    Parameters
    ----------
    spec
        A GPU.
    """

    def __init__(self, spec: TargetSpec) -> None:
        self._spec = spec
        self._found: dict[Key, ClaimedGroup] = {}

    @property
    def groups(self) -> list[ClaimedGroup]:
        """What was found."""
        return list(self._found.values())

    def add(self, name: str, mod: tvm.IRModule) -> None:
        """Plan an imported module, and claim and emit its groups."""
        target = self._spec.tvm_target()
        with target:
            mod = tvm.ir.transform.Sequential([stage() for stage in STAGES])(mod)
        for func in mod.functions.values():
            if not is_group(func):
                continue
            group, kind = group_of(mod, func), str(func.attrs[TEMPLATE])
            key = Key.of(group, kind, self._spec.device)
            known = self._found.get(key)
            if known is None:
                claimant = template(kind, target)
                claim = claimant.claim(group, self._spec.device)
                if isinstance(claim, Refusal):
                    raise RuntimeError(f"{kind} refuses what was planned: {claim.sentence}")
                emission = claimant.emit(claim, target)
                functions = tuple(kernel.func for kernel in emission.kernels)
                known = self._found[key] = ClaimedGroup(claim, functions)
            if name not in known.graphs:
                known.graphs.append(name)


def graphs(models: list[str], works: int | None, seed: int) -> Iterator[tuple[str, tvm.IRModule]]:
    """Import models of the zoo, then works of ``benchmarks.gpu`` (in PyTorch), so many drawn."""
    for name in models:
        yield name, import_model(zoo.load(name, seed), FusionConfig()).mod
    if works is None:
        return
    from benchmarks.gpu.catalog import works as listed

    for work in listed(seed, works):
        yield work.name, import_model(work.exported()).mod
