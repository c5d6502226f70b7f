"""Norm prologue of a GEMM on a CPU: A is a row program, such as a layer norm of another tensor.

Each task normalizes the rows of its block before the GEMM reads them, so that they never reach
memory. Tasks that share rows normalize them again.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, tirx

from ...._tvm.ir.buffer import declare
from ....core.contract.template import Refusal
from ....core.tir.expressions import load, loads, variables
from ....core.tir.loops import constant, substitute
from ....ecg.graph import Graph, Operator
from ....program.contractions import dependents, has_windows, is_contraction, operands_of
from ....program.program import Program
from ....program.stage import Axis, Stage
from ...index.proposals import LIGHT, in_order, reached, reductions

MAX_BEFORE = 48  # operators that are followed back from a GEMM
LEVELS = 3  # dependent reductions, such as mean, variance and what guards them


@dataclass(frozen=True)
class NormPrologue:
    """A program cut in two: the rows of A, and the GEMM that reads them."""

    rows: Program  # reductions over rows, and maps of them; its last output is ``operand``
    product: Program  # the GEMM, with ``operand`` as the last input
    operand: ir.Var  # A: a buffer of the rows' axes, then of K

    @property
    def k(self) -> int:
        """Elements of a row."""
        return math.prod(int(d) for d in self.operand.ty.shape[self.rows.row_rank :])


def norm_prologue(program: Program, narrow: Collection[str] = ()) -> NormPrologue | Refusal:
    """Cut a program whose last reduction is a GEMM of rows that the others compute.

    Parameters
    ----------
    narrow
        Types that the rows keep where the product casts them to that of its sums.

    Returns
    -------
    RowPrologue or Refusal
        The refusal tells the difference.
    """
    reductions = [s for s in program.stages if not s.is_map]
    contractions = [s for s in reductions if is_contraction(s)]
    if len(contractions) != 1 or contractions[0] is not reductions[-1]:
        return Refusal(
            "not_mine",
            f"It is not row reductions and then one contraction: of {len(reductions)} reductions, "
            f"{len(contractions)} are contractions.",
        )
    (stage,) = contractions
    after = [stage, *dependents(program.stages, stage)]
    before = [s for s in program.stages if s not in after]
    computed = {t for s in before for t in s.targets}
    operand_a = _computed_operand(stage, computed)
    if operand_a is None or any(
        x.source in computed for s in after for x in s.loads if s is not stage
    ):
        return Refusal(
            "norm_not_operand_a",
            f"The other reductions do not compute exactly one operand of {stage.title}.",
        )
    if isinstance(operand_a, tirx.Cast) and str(operand_a.value.ty.dtype) in narrow:
        operand_a = operand_a.value
    rows = stage.axes[: program.row_rank]
    axes = (*rows, *stage.reduce)
    if variables(operand_a) & {a.var for a in stage.axes} - {a.var for a in rows}:
        return Refusal(
            "norm_not_operand_a",
            f"The operand of {stage.title} with the reductions varies with its columns (N).",
        )
    if any(constant(a.extent) is None for a in stage.reduce):
        return Refusal(
            "symbolic_k", f"The reduction extent (K) of {stage.title} is not known at compile time."
        )
    if any(has_windows(s, s.loads) for s in before) and any(
        constant(a.extent) is None for a in rows[1:]
    ):
        # Each element would divide its row's number by the extents, and TVM's code generator
        # simplifies quotients inside quotients again and again: it took minutes.
        return Refusal(
            "symbolic_window",
            f"The rows of {stage.title} come from windows, whose positions depend on extents "
            "that are not known at compile time.",
        )
    shape = [a.extent for a in axes]
    operand = declare(shape, str(operand_a.ty.dtype), "rows")
    replaced = replace_operand(stage, operand_a, load(operand, [a.var for a in axes]))
    written = [b for b in program.outputs if b in computed]
    fresh = tuple(Axis(tirx.Var(a.var.name, "int64"), a.extent) for a in axes)
    place = {a.var: f.var for a, f in zip(axes, fresh, strict=True)}
    copy = Stage(
        "operand",
        fresh,
        (),
        (operand,),
        (tuple(f.var for f in fresh),),
        (substitute(operand_a, place),),
        None,
    )
    product_stages = tuple(replaced if s is stage else s for s in after)
    return NormPrologue(
        _program(program, (*before, copy), (*written, operand)),
        replace(
            program,
            inputs=(*program.inputs, operand),
            outputs=tuple(b for b in program.outputs if b not in computed),
            stages=product_stages,
        ),
        operand,
    )


def _program(program: Program, stages: tuple[Stage, ...], outputs: tuple[ir.Var, ...]) -> Program:
    used = {x.source for s in stages for x in s.loads}
    inputs = tuple(b for b in program.inputs if b in used)
    return replace(program, inputs=inputs, outputs=outputs, stages=stages)


def _computed_operand(stage: Stage, computed: set[ir.Var]) -> ir.Expr | None:
    """Find the only operand that reads what other stages compute."""
    factors = [f for f in operands_of(stage) or () if any(x.source in computed for x in loads(f))]
    return factors[0] if len(factors) == 1 else None


def replace_operand(stage: Stage, operand: ir.Expr, other: ir.Expr) -> Stage:
    """Replace an operand of a stage by another expression."""

    def swap(node: ir.Expr) -> ir.Expr:
        return other if node.same_as(operand) else node

    values = tuple(
        tvm_ffi.structural_map(v, (type(operand), swap), order="post") for v in stage.values
    )
    return replace(stage, values=values)


def norm_gemm_proposals(graph: Graph) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators: a GEMM, the nearest reductions before it, and the path between.

    Yields
    ------
    tuple of Operator
        First with the nearest reductions alone, then with those that they need in turn.
    """
    stages = {op: reductions(op) for op in graph.operators}
    for op, found in stages.items():
        if len(found) == 1 and is_contraction(found[0]):
            inside = {op}
            for _ in range(LEVELS):
                more = nearest_reductions(graph, inside, stages)
                if not more:
                    break
                inside |= more
                yield in_order(inside)


def nearest_reductions(
    graph: Graph, inside: set[Operator], stages: dict[Operator, list[Stage]]
) -> set[Operator]:
    """Find the reductions that only light operators separate from a set, and those operators."""
    above: dict[Operator, None] = {}
    frontier = list(inside)
    nearest = []
    while frontier and len(above) < MAX_BEFORE:
        for op in graph.predecessors(frontier.pop(0)):
            if op in above or op in inside:
                continue
            if stages[op] and not any(map(is_contraction, stages[op])):
                nearest.append(op)
            elif op.type not in LIGHT:
                continue
            else:
                frontier.append(op)
            above[op] = None
    return reached(nearest, graph.successors, above)
