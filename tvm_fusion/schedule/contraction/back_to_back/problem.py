"""Two GEMMs back to back, read as two products with a hidden operand between them.

    H = round(epilogue(X * W1))        rows of N1 columns, of a half type, read by nothing else
    D = epilogue(H * W2)

H stands for a buffer that no memory has: the first product's only result, the second's operand A.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.template import Refusal
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import substitute
from ....device import Device
from ....ecg.graph import Graph, Operator
from ....program.contractions import operands_of
from ....program.program import Program
from ....program.stage import Axis, Stage
from ...index.proposals import LIGHT, in_order, leaves, reached
from ...instructions.nvidia import HALF_TYPES
from ..problem.norm_prologue import replace_operand
from ..problem.sum_of_products import SumOfProducts, analyse
from ..tile.config import narrow_operand
from ..wgmma.dual_gemm import MAX_BEHIND, is_product
from ..wgmma.space import has_wgmma


@dataclass(frozen=True)
class BackToBack:
    """Two products, of which the second reads what the first one's epilogue computes."""

    # The products; ``hidden`` is the first's only result, and an operand of the second.
    first: SumOfProducts
    second: SumOfProducts
    hidden: ir.Var  # the hidden operand: a buffer of the second's rows, then of its terms


def back_to_back(program: Program, stages: Sequence[Stage]) -> BackToBack | Refusal:
    """Cut a program of two products at the operand that the second computes of the first.

    Parameters
    ----------
    stages
        The program's, without internal maps.
    """
    first, second = (s for s in stages if not s.is_map)
    target = first.targets[0]
    of_first = [x for x in operands_of(second) or () if target in _sources(x)]
    if len(of_first) != 1:
        return Refusal(
            "not_mine", f"Not exactly one operand of {second.title} is computed from {first.title}."
        )
    hidden = narrow_operand(of_first[0])
    if str(hidden.ty.dtype) not in HALF_TYPES:
        return Refusal("not_mine", f"{second.title} does not read {first.title} in a half type.")
    readers = [s.title for s in stages if s is not first and s is not second and target in s.reads]
    if target in program.outputs or readers:
        return Refusal(
            "hidden_is_read",
            f"The result of {first.title} has readers other than {second.title}: it would be "
            "stored, and then one kernel of both takes longer than two.",
        )
    axes = tuple(a for a in (*second.axes, *second.reduce) if a.var in variables(hidden))
    fresh = tuple(Axis(tirx.Var(a.var.name, "int64"), a.extent) for a in axes)
    place = {a.var: f.var for a, f in zip(axes, fresh, strict=True)}
    buffer = declare([a.extent for a in axes], str(hidden.ty.dtype), "hidden")
    written = (tuple(f.var for f in fresh),)
    copy = Stage("hidden", fresh, (), (buffer,), written, (substitute(hidden, place),), None)
    reads = replace_operand(second, hidden, load(buffer, [a.var for a in axes]))
    behind = tuple(reads if s is second else s for s in stages if s is not first)
    cut = (
        replace(program, outputs=(buffer,), stages=(first, copy)),
        replace(program, inputs=(*program.inputs, buffer), stages=behind),
    )
    products = [analyse(one, one.stages) for one in cut]
    for found in products:
        if isinstance(found, Refusal):
            return found
    a, b = products
    assert isinstance(a, SumOfProducts)
    assert isinstance(b, SumOfProducts)
    if a.column_split is not None or b.column_split is not None:
        return Refusal(
            "epilogue_elsewhere",
            f"An epilogue of {first.title} or {second.title} reads several of its columns.",
        )
    return BackToBack(a, b, buffer)


def _sources(expr: ir.Expr) -> set[ir.Var]:
    return {x.source for x in loads(expr)}


def back_to_back_proposals(
    graph: Graph, device: Device
) -> Iterator[tuple[Operator, Operator, tuple[Operator, ...]]]:
    """Name two products and all operators: these, and what the second reads of the first.

    Parameters
    ----------
    device
        Without wgmma there are none.
    """
    if not has_wgmma(device):
        return
    for second in graph.operators:
        if not is_product(second):
            continue
        above: dict[Operator, None] = {}
        firsts: dict[Operator, None] = {}
        frontier = [second]
        while frontier and len(above) < MAX_BEHIND:
            for op in graph.predecessors(frontier.pop(0)):
                if is_product(op) and not leaves(op):
                    firsts[op] = None
                elif op not in above and op.type in LIGHT:
                    above[op] = None
                    frontier.append(op)
        for first in firsts:
            between = reached([first], graph.successors, above)
            yield first, second, in_order({second, *between})
