"""The mapping table: pairs of operators become one kernel, or stay apart where it is red.

A kernel is one loop nest over full tensors on the CPU and one launch on CUDA.
"""

import pytest
import tvm
from tvm import relax, tirx

from benchmarks.fusion import cells
from benchmarks.fusion.case import Case, Compiled, compile_case, errors, runnable
from benchmarks.fusion.cell_operators import OPERATORS
from tvm_fusion import transform
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.ecg.mapping_types.table import TABLE, MappingType, Relation

pytestmark = pytest.mark.slow_beyond(4)

# Which kernels pay is the machine's: a named CPU makes counts the same everywhere.
COUNTED = ("cpu:x86-64-v4", "cuda:sm_90a")
RUN = runnable(COUNTED[0])
RED = {
    (first.value, second.value)
    for (first, second), cell in TABLE.items()
    if cell.relation is Relation.BREAK
}
# Nothing is computed in it: it may be a view of its input.
VIEWS = ("Reorganize", "Reorganize")
# Red pairs that a template takes by name, with the operator before it as a prologue.
BY_NAME = {
    *(("repeat-matmul", target) for target in COUNTED),
    *(("repeat-matmul-symbolic", target) for target in COUNTED),
    *(("broadcast_subtract-softmax", target) for target in COUNTED),
    ("tile-matmul_by", "cuda:sm_90a"),
    ("resize-conv2d", "cuda:sm_90a"),
}


def _identity(cell: tuple[str, str], case: Case) -> str:
    return f"{'+'.join(cell)}/{case.name}"


ALL = [
    pytest.param(cell, case, id=_identity(cell, case))
    for cell, pairs in cells.PAIRS.items()
    for case in (
        *(cells.case(*pair) for pair in pairs),
        cells.case(*pairs[0], symbolic=True),
    )
]
FUSED = [param for param in ALL if param.values[0] not in RED]
APART = [param for param in ALL if param.values[0] in RED]


@pytest.fixture(autouse=True, scope="module")
def _two_threads():
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(1, 2)
    yield
    configure(1, 0)


def test_every_cell_has_pairs_of_its_types():
    types = [mapping.value for mapping in MappingType if mapping is not MappingType.OPAQUE]
    assert set(cells.PAIRS) == {(first, second) for first in types for second in types}
    for cell, pairs in cells.PAIRS.items():
        assert len(set(pairs)) >= 3
        for pair in pairs:
            assert tuple(OPERATORS[name].type for name in pair) == cell
        if cell[1] in ("One-to-One", "One-to-Many", "Many-to-Many"):  # they have binary operators
            assert {OPERATORS[second].position for _, second in pairs} == {0, 1}, cell


def legalized(case: Case, target: str) -> tvm.IRModule:
    with parse(target).tvm_target():
        mod = transform.Rewrite()(transform.NormalizeImport()(case.build()))
        return transform.Legalize()(mod)


def runs_as_decided(cell, case: Case, target: str) -> Compiled:
    """Check what is decided and computed on a CPU, and what is counted: one compilation."""
    found = compile_case(case, target)
    if cell != VIEWS:  # of two views laws make one
        between = [d for d in found.decisions if d.producer and d.consumer]
        assert between, found
        assert {d.classes[:2] for d in between} == {cell}, found
        planned = {name for d in between for name in (d.producer, d.consumer)}
        assert len(planned) == 2, found
    if target == COUNTED[0]:
        one = found if target == RUN else compile_case(case, RUN)
        for error in errors(case, one):
            assert error <= case.tolerance, one
    return found


@pytest.mark.parametrize("target", COUNTED)
@pytest.mark.parametrize(("cell", "case"), FUSED)
def test_one_kernel_with_right_results(cell, case, target):
    found = runs_as_decided(cell, case, target)
    kernels, hidden_bytes = found.count.kernels, found.count.hidden_bytes
    assert kernels == 1 or (cell == VIEWS and kernels == 0), found
    assert hidden_bytes == 0, found
    assert not found.count.caveats


@pytest.mark.parametrize("target", COUNTED)
@pytest.mark.parametrize(("cell", "case"), APART)
def test_red_cells_stay_apart_and_say_so(cell, case, target):
    found = runs_as_decided(cell, case, target)
    if (case.name, target) in BY_NAME:
        assert found.count.kernels == 1, found
        assert {d.code for d in found.decisions} == {"fused"}, found
        assert proposals(case, target)
        return
    assert found.count.kernels == 2, found
    refusals = [d for d in found.decisions if d.code == "mapping_red"]
    assert refusals, found
    assert {(d.verdict, d.classes[:2]) for d in refusals} == {("refused", cell)}
    assert all(d.sentence for d in refusals)


def test_matrix_products_stay_apart_without_a_proposal():
    case = cells.case("matmul", "matmul")
    assert not proposals(case, "cuda:sm_90a")
    found = compile_case(case, "cuda:sm_90a")
    assert found.count.kernels == 2, found


def proposals(case: Case, target: str) -> list[frozenset[str]]:
    """Names of the operators that templates propose to compute together."""
    from tvm_fusion.core.contract.templates import templates

    mod, spec = legalized(case, target), parse(target)
    main = relax.transform.ConvertToDataflow(min_size=1)(mod)["main"]
    graphs = [Graph(mod, main, b) for b in main.body.blocks if isinstance(b, relax.DataflowBlock)]
    return [
        frozenset(op.name for op in operators)
        for graph in graphs
        for template in templates(spec.tvm_target())
        for operators in template.propose(graph, spec.device)
        if len(operators) == len(graph.operators)
    ]


@pytest.mark.cuda_toolchain
@pytest.mark.parametrize("cell", sorted({param.values[0] for param in FUSED}), ids="+".join)
def test_compiles_for_hopper(cell):
    """The kernels of all pairs of a cell, in one module."""
    found = [compile_case(p.values[1], "cuda:sm_90a") for p in FUSED if p.values[0] == cell]
    functions = {}
    for number, one in enumerate(found):
        for gvar, func in one.mod.functions.items():
            if isinstance(func, tirx.PrimFunc) and "tirx.is_host_func" not in func.attrs:
                name = f"{gvar.name_hint}_of_{number}"
                functions[name] = func.with_attr("global_symbol", name)
    if cell == VIEWS:
        assert not functions
        return
    assert len(functions) >= len(found)
    with toolchain(parse("cuda:sm_90a")), found[0].target as target:
        built = tvm.compile(tvm.IRModule(functions), target, tir_pipeline=PIPELINE)
    (code,) = [module for module in built.mod.imports if module.kind == "cuda"]
    assert code.inspect_source().count("__global__") >= len(functions)
