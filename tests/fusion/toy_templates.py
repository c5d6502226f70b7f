"""Templates with rules of one line, to plan with."""

import tvm
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.core.contract.template import Claim, Emission, Refusal, Template
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.ecg.mapping_types.table import MappingType
from tvm_fusion.fusion.claims import ClaimBook
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.planning.plan import Plan, plan

SPEC = parse("cpu")


def claimed(template, group) -> Claim:
    flops = sum(op.flops for op in group.members)
    return Claim(template, group, 1, group.bytes, flops, parallelism=64)


class Anchored(Template):
    """Takes any group of at most so many Many-to-Many operators."""

    name = "anchored"

    def __init__(self, anchors: int = 1, proposals: tuple[tuple[str, ...], ...] = ()) -> None:
        self.anchors = anchors
        self.proposals = proposals
        self.asked: list[str] = []

    def claim(self, group, device):
        self.asked.append(group.title)
        count = sum(op.type is MappingType.MANY_TO_MANY for op in group.members)
        if count > self.anchors:
            return Refusal("too_many_anchors", f"It has {count} anchors.")
        return claimed(self, group)

    def emit(self, claim, target):
        return Emission.one(claim.group.prim_func, claim.group)

    def propose(self, graph, device):
        by_name = {op.name: op for op in graph.operators}
        for names in self.proposals:
            yield tuple(by_name[n] for n in names)


def legalized(mod: tvm.IRModule, target=None) -> tvm.IRModule:
    """Bring a module to where fusion begins."""
    with target or SPEC.tvm_target():
        mod = transform.Legalize()(mod)
        return relax.transform.ConvertToDataflow(min_size=1)(mod)


def graph_of(mod: tvm.IRModule) -> Graph:
    """Make the graph of a function's first block, from high-level operators."""
    mod = legalized(mod)
    func = mod["main"]
    block = next(b for b in func.body.blocks if isinstance(b, relax.DataflowBlock))
    return Graph(mod, func, block)


def planned(mod: tvm.IRModule, *templates: Template, cost=None) -> Plan:
    """Plan a function's first block."""
    book = ClaimBook(templates, SPEC.device, cost or CostModel(SPEC.device))
    return plan(graph_of(mod), templates, book)


def names(plan_: Plan) -> list[list[str]]:
    """Variables of each group's members."""
    return [[op.name for op in group.members] for group in plan_.groups]
