"""The template for row reductions: softmax, norms, pooling, argmax, with maps around them."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tvm import ir
from tvm.target import Target

from ...core.contract.forms import Form
from ...core.contract.kernel_work import NO_WORK
from ...core.contract.template import Claim, Config, Emission, Refusal, Template
from ...core.once import once
from ...core.tir.expressions import loads, variables
from ...device import Device, device_of
from ...ecg.graph import Graph, Operator
from ...ecg.mapping_types.table import MappingType
from ...ecg.work import at
from ...program.contractions import is_contraction, operands_of
from ...program.group import Group
from ...program.program import Program
from ...program.stage import Axis, Stage, Unstructured
from ..index.address import known_step
from ..index.design_space import Kernels, member
from ..index.estimate import flops, too_many_parameters, traffic
from ..index.proposals import LIGHT, in_order, own_producers, reached
from .cpu.config import KERNELS as CPU_KERNELS
from .cpu.config import CpuRowConfig
from .cpu.config import configs as cpu_configs
from .cpu.kernel import schedule_rows_cpu
from .estimate import obstacles, parallelism, read_again, row_work, waits
from .gpu.config import RowConfig
from .gpu.forms import estimate_rows_gpu, tunable_rows
from .gpu.kernel import schedule_rows_gpu
from .gpu.space import KERNELS, configs
from .program.read import count_rows, rows_of
from .split.forms import weighed

# Proposals of row programs: reductions over the same rows, with the operators between them.
#
# The mapping table separates two Many-to-Many operators, and a One-to-Many operator from the
# reduction that it feeds. Over the same rows both are one kernel: softmax and norms as primitive
# operators, an embedding lookup before its norm, a broadcast mask before softmax.

MAX_BETWEEN = 48  # operators followed from one reduction on
MAX_SHARED = 3  # One-to-Many operators that others read as well


def row_proposals(
    graph: Graph, is_row_reduction: Callable[[Operator], bool], shared: bool
) -> Iterator[tuple[Operator, ...]]:
    """Name sets of operators around row reductions.

    Parameters
    ----------
    is_row_reduction
        Whether a Many-to-Many operator reduces rows, rather than contracting two operands.
    shared
        Whether kernels may have results that others read as well.

    Yields
    ------
    tuple of Operator
        Pairs of reductions with what lies between them; connected pairs together; reductions whose
        results meet, as those of a cosine do, with what lies up to there, and with pairs, as those
        of a correlation; each of them, and each single reduction, with the One-to-Many operators
        before it; single reductions with those that others read as well, whose results are then the
        kernel's, too.
    """
    reductions = [
        op for op in graph.operators if op.type is MappingType.MANY_TO_MANY and is_row_reduction(op)
    ]
    known = set(reductions)
    spans = [span for op in reductions for span in _spans(graph, op, known)]
    meetings = [*_meetings(graph, known)]
    sets: list[frozenset[Operator]] = [*spans, *_joined(spans), *meetings]
    sets.extend(_joined([*spans, *meetings]))
    sets.extend(frozenset([op]) for op in reductions)
    for operators in dict.fromkeys(sets):
        if len(operators) > 1:
            yield in_order(operators)
        extended = _with_broadcasts(graph, operators)
        if extended != operators:
            yield in_order(extended)
        if shared and len(operators) == 1:
            for added in _with_shared_broadcasts(graph, operators):
                if added != extended:
                    yield in_order(added)


def _spans(
    graph: Graph, first: Operator, reductions: set[Operator]
) -> Iterator[frozenset[Operator]]:
    """Yield, for each reduction that a reduction reaches, all operators on the paths there."""
    below: dict[Operator, None] = {}
    frontier = [first]
    ends = []
    while frontier and len(below) < MAX_BETWEEN:
        for op in graph.successors(frontier.pop(0)):
            if op in below:
                continue
            if op in reductions:
                ends.append(op)
            elif op.type not in LIGHT:
                continue
            below[op] = None
            frontier.append(op)
    for last in ends:
        yield frozenset([first, *reached([last], graph.predecessors, below)])


def _meetings(graph: Graph, reductions: set[Operator]) -> Iterator[frozenset[Operator]]:
    """Yield reductions that an operator reads several of, in results as large as its own."""
    found: dict[Operator, frozenset[Operator]] = {}
    for op in graph.operators:
        if op in reductions:
            found[op] = frozenset([op])
        before = [p for p in graph.predecessors(op) if p in found]
        # What is of whole rows again is on a path between two reductions.
        is_of_rows = all(p.results[0].bytes == op.results[0].bytes for p in before)
        if op.type not in LIGHT or not before or not is_of_rows:
            continue
        found[op] = frozenset([op]).union(*(found[p] for p in before))
        if len(before) > 1 and len(found[op]) <= MAX_BETWEEN:
            yield found[op]


def _joined(spans: list[frozenset[Operator]]) -> list[frozenset[Operator]]:
    """Join spans that share operators: a norm of primitive operators may have three reductions."""
    joined: list[frozenset[Operator]] = []
    for span in spans:
        touching = [u for u in joined if u & span]
        joined = [u for u in joined if not u & span]
        joined.append(span.union(*touching))
    return joined


def _with_shared_broadcasts(
    graph: Graph, operators: frozenset[Operator]
) -> Iterator[frozenset[Operator]]:
    """Add light producers, whoever else reads them, up to each of the nearest One-to-Many ones."""
    candidates: dict[Operator, None] = {}
    broadcasts: list[Operator] = []
    frontier = [*operators]
    while frontier and len(candidates) < MAX_BETWEEN and len(broadcasts) < MAX_SHARED:
        for op in graph.predecessors(frontier.pop(0)):
            if op.type not in LIGHT or op in candidates:
                continue
            candidates[op] = None
            frontier.append(op)
            if op.type is MappingType.ONE_TO_MANY:
                broadcasts.append(op)
                yield operators | reached(broadcasts, graph.successors, candidates)


def _with_broadcasts(graph: Graph, operators: frozenset[Operator]) -> frozenset[Operator]:
    """Add light producers that nothing else reads, up to the last One-to-Many one of a path."""
    candidates = own_producers(graph, in_order(operators), LIGHT, MAX_BETWEEN)
    broadcasts = [op for op in candidates if op.type is MappingType.ONE_TO_MANY]
    return operators | reached(broadcasts, graph.successors, candidates)


# A contraction may be one stage of a row, such as the two small products that weigh the channels of
# an image (squeeze and excitation), if there are few rows: each reads the operand again.
SMALL_CONTRACTION = 1 << 21  # operations
# Of one block of a GPU: on an H200, both products of 32 and 8 channels take 1.7 us in one block, of
# 96 and 4 3.1, of 144 and 6 3.8, of 240 and 10 6.3; those of 480 and 20 2.6 in two launches. Up to
# 144 and 6, a launch less is preferred: EfficientNet would have more launches than stock TVM.
SMALL_CONTRACTION_GPU = 1 << 11
FEW_ROWS = 4


@dataclass(frozen=True, eq=False)
class RowsDetails:
    """What a claim remembers until its kernel is made."""

    config: RowConfig | CpuRowConfig  # of a GPU, or of a CPU


class Rows(Template):
    """Softmax, norms, pooling, argmax, any reductions over one set of rows: one launch.

    A row is a value of the axes that all stages share; what one stage hands to another stays within
    its row, so that a block (GPU) or a task (CPU) computes all of it.
    """

    name = "rows"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim a program with reductions, none of them a large contraction."""
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reductions = [stage for stage in program.stages if not stage.is_map]
        if not reductions:
            return Refusal("not_mine", "There is no reduction.")
        on_cpu = device.kind == "llvm"
        refusal = too_many_parameters(program) or _large_contraction(program, on_cpu)
        if refusal is None:
            program = rows_of(group, on_cpu)
            refusal = _strided_contraction(program) if on_cpu else None
        if refusal is not None:
            return refusal
        estimate = None if on_cpu else estimate_rows_gpu(program, device)
        if isinstance(estimate, Refusal):
            return estimate
        config: RowConfig | CpuRowConfig
        if estimate is None:
            config = CpuRowConfig.of(program, device)
            extra = obstacles(program, config)
        else:
            config, extra = estimate.config, waits(program, estimate, device)
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, program.stages) + read_again(program),
            flops=flops(program.stages) + extra,
            parallelism=parallelism(program, estimate),
            shared_bytes=estimate.shared_bytes if estimate else 0,
            registers=estimate.registers if estimate else 0,
            work=row_work(program, estimate, device) if estimate else NO_WORK,
            details=RowsDetails(config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel of the claimed configuration."""
        config = claim.details_as(RowsDetails).config
        program = rows_of(claim.group, isinstance(config, CpuRowConfig))
        if isinstance(config, CpuRowConfig):
            func = schedule_rows_cpu(program, target, config)
        else:
            func = schedule_rows_gpu(program, config, device_of(target), _constants(claim.group))
        return Emission.one(func, claim.group)

    def forms(self, claim: Claim, device: Device) -> tuple[Form, ...]:
        """Tell the forms of a GPU's kernels: see :mod:`.split.forms`."""
        return () if device.kind == "llvm" else weighed(claim.group, device, is_split=False)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate threads and rows of a block, and what they keep; on CPUs vectors and tasks."""
        return map(_kernels(device).plain, self._designs(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed row kernel."""
        chosen = member(claim, config, self._designs(claim, device), _kernels(device).plain)
        if isinstance(chosen, Refusal):
            return chosen
        return replace(claim, details=RowsDetails(chosen))

    def _designs(self, claim: Claim, device: Device) -> Iterator[RowConfig | CpuRowConfig]:
        on_cpu = device.kind == "llvm"
        program = rows_of(claim.group, on_cpu)
        if on_cpu:
            return cpu_configs(CpuRowConfig.of(program, device))
        return configs(tunable_rows(program, device), device)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name reductions over the same rows, which growth keeps separate."""
        return row_proposals(graph, _is_row_reduction, shared=device.kind != "llvm")


def _kernels(device: Device) -> Kernels:
    return CPU_KERNELS if device.kind == "llvm" else KERNELS


def _large_contraction(program: Program, on_cpu: bool) -> Refusal | None:
    most = SMALL_CONTRACTION if on_cpu else SMALL_CONTRACTION_GPU
    contractions = [stage for stage in program.stages if is_contraction(stage)]
    if not contractions:
        return None
    name = max(contractions, key=_operations).title
    is_only = len(program.stages) == sum(s.is_map for s in program.stages) + 1
    if is_only and not _gates_rows(program, contractions[0]):
        return Refusal("not_mine", f"{name} is a contraction and the only reduction.")
    # A vector that rows are weighed by is read as a norm's gain is: of one number a row.
    contractions = [
        s for s in contractions if len(s.axes) > program.row_rank or not _weighs_rows(program, s)
    ]
    if not contractions:
        return None
    name = max(contractions, key=_operations).title
    rows, operations = count_rows(program), max(map(_operations, contractions))
    if rows > FEW_ROWS or operations > most:
        return Refusal(
            "large_contraction",
            f"A row kernel takes contractions of at most {most:,} operations, and of at most "
            f"{FEW_ROWS} rows: {name} has {operations:,} operations, and the rows are {rows}.",
        )
    return None


def _weighs_rows(program: Program, contraction: Stage) -> bool:
    """Whether a contraction multiplies the program's rows by one vector, as a norm's gain does.

    Rows of a matrix that nothing else reads are those of a product, which its templates do better.
    """
    operands, axes = operands_of(contraction), {a.var for a in contraction.axes if at(a.extent) > 1}
    others = [stage for stage in program.stages if stage is not contraction]
    known = {t for stage in others for t in stage.targets}.union(*(s.reads for s in others))
    pairs = () if operands is None else (operands, operands[::-1])
    return any(
        not variables(vector) & axes and any(load.source in known for load in loads(row))
        for vector, row in pairs
    )


def _gates_rows(program: Program, contraction: Stage) -> bool:
    """Whether rows are read once more behind their product with a vector, as gates of pixels do."""
    is_vector = len(contraction.axes) <= program.row_rank and _weighs_rows(program, contraction)
    return is_vector and any(len(stage.axes) > program.row_rank for stage in program.stages)


def _strided_contraction(program: Program) -> Refusal | None:
    contractions = [stage for stage in program.stages if is_contraction(stage)]
    if all(_reads_along(s, s.reduce[-1]) for s in contractions):
        return None
    # Vectors run along results then. Of one product, another template's kernel has many tasks.
    is_gate = len(contractions) > 1 or len(contractions[0].axes) <= program.row_rank
    if is_gate and all(_reads_along(s, s.axes[-1]) for s in contractions):
        return None
    name = max(contractions, key=_operations).title
    return Refusal(
        "strided_contraction",
        f"An operand of {name} is not contiguous along its reduction, and a row kernel reads "
        "it whole for every row.",
    )


def _reads_along(contraction: Stage, along: Axis) -> bool:
    """Whether the operands of a contraction are contiguous along an axis, or do not vary."""
    axes = [a.var for a in (*contraction.axes, *contraction.reduce)]
    return all(
        known_step(read.source, read.indices, along.var, axes) == 1
        for value in contraction.values
        for read in loads(value)
        if along.var in variables(read) and read.source not in contraction.targets
    )


def _constants(group: Group) -> list[ir.Var]:
    """List the inputs that are known at compile time, which no kernel writes."""
    known = zip(group.program.inputs, group.inputs, strict=True)
    return [buffer for buffer, value in known if value.is_constant]


def _is_row_reduction(op: Operator) -> bool:
    """Whether an operator's reductions are small enough to be stages of a row."""
    group = Group([op])
    return once(("row reduction", group.key), lambda: _reduces_rows(group))


def _reduces_rows(group: Group) -> bool:
    try:
        stages = group.program.stages
    except Unstructured:
        return False
    contractions = [s for s in stages if is_contraction(s)]
    matrices = [s for s in contractions if at(s.axes[-1].extent) > 1]  # a vector weighs a row
    vectors = all(math.prod(at(a.extent) for a in s.axes[:-1]) <= FEW_ROWS for s in matrices)
    return vectors and all(_operations(s) <= SMALL_CONTRACTION for s in contractions)


def _operations(stage: Stage) -> int:
    return 2 * math.prod(at(axis.extent) for axis in (*stage.axes, *stage.reduce))
