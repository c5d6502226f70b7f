"""Every refusal code: a graph that provokes it, and the sentence that comes out."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from group_kernels import CPU, CUDA, group, tensor
from kernel_refusals import IMAGE, KERNEL_CASES, behind, conv, ones
from layer_refusals import LAYER_CASES
from refusal_case import Case
from relax_modules import main_module
from toy_templates import Anchored, graph_of, planned
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import tvm_fusion
from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.fusion.claims import ClaimBook
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.refusals import RefusedByAll
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.attention.template import Attention
from tvm_fusion.schedule.contraction.cpu.templates.gemm import CpuContraction
from tvm_fusion.schedule.contraction.cpu.templates.grouped import GroupedGemm
from tvm_fusion.schedule.contraction.cpu.templates.norm import NormGemm
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction
from tvm_fusion.schedule.convolution.problem import groups
from tvm_fusion.schedule.convolution.template import CpuConvolution
from tvm_fusion.schedule.elementwise.template import Elementwise
from tvm_fusion.schedule.index.inline import inlined_size
from tvm_fusion.schedule.rows.template import Rows
from tvm_fusion.schedule.scan.template import PrefixSum
from tvm_fusion.schedule.single.template import Single

op = relax.op
N = tirx.Var("n", "int64")


@I.ir_module
class Horner:
    @T.prim_func(private=True, s_tir=True)
    def horner(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8,), "float32")):
        T.func_attr({"tirx.noalias": True})
        for i, k in T.grid(8, 16):
            with T.sblock("horner"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] * T.float32(0.5) + A[vi, vk]

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8,), "float32"):
        cls = Horner
        with R.dataflow():
            y = R.call_tir(cls.horner, (x,), out_ty=R.Tensor((8,), "float32"))
            R.output(y)
        return y


def norm_then(last):
    def body(emit, x, w):
        return last(emit, emit(op.nn.softmax(x, -1)), w)

    return body


def product(emit, rows, w):
    return op.matmul(rows, w)


def chain(times, function):
    def body(emit, x):
        for _ in range(times):
            x = emit(function(x))
        return x

    return body


def doubling(emit, x, w):
    for _ in range(11):
        x = emit(op.multiply(emit(op.add(x, x)), x))
    return op.matmul(x, w)


def leaving_prologue(emit, x, w):
    rows = emit(op.exp(x))
    return [rows, op.matmul(rows, w)]


def mirrored(emit, x):
    total = emit(op.sum(x, -1))
    return op.add(total, emit(op.flip(total, 1)))


def query_per_key(emit, q, k, v):
    s = emit(op.einsum([q, k], "qkd,kd->qk"))
    return op.matmul(emit(op.nn.softmax(s, -1)), v)


def attention(score=None, weigh=None, norm=None, second=None):
    def body(emit, q, k, v):
        s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
        s = emit(score(s)) if score else s
        p = norm(emit, s) if norm else emit(op.nn.softmax(s, -1))
        p = emit(weigh(p)) if weigh else p
        return second(emit, p, v) if second else op.matmul(p, v)

    return body


def two_maxima(emit, s):
    shifted = emit(op.subtract(s, emit(op.max(s, -1, True))))
    return emit(op.divide(shifted, emit(op.max(shifted, -1, True))))


def softmax_of_both_axes(emit, s):
    exponentials = emit(op.exp(emit(op.subtract(s, emit(op.max(s, [1, 2], True))))))
    return emit(op.divide(exponentials, emit(op.sum(exponentials, [1, 2], True))))


def shifted_rows(emit, s):
    """Each row's exponentials are summed over the rows of another order."""
    other = emit(op.flip(s, 1))
    exponentials = emit(op.exp(emit(op.subtract(s, emit(op.max(other, -1, True))))))
    return emit(op.divide(exponentials, emit(op.sum(exponentials, -1, True))))


def scores_and_more(emit, q, k, v):
    s = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
    return [op.matmul(emit(op.nn.softmax(s, -1)), v), op.nn.relu(s)]


QKV = [tensor("q", 2, 9, 8), tensor("k", 2, 7, 8), tensor("v", 2, 7, 6)]
QKV64 = [tensor(n, 2, 7, 8, dtype="float64") for n in "qkv"]
LARGE = [tensor("q", 2, 9, 600), tensor("k", 2, 7, 600), tensor("v", 2, 7, 6)]
SYMBOLIC = [tensor("q", 2, 9, N), tensor("k", 2, 7, N), tensor("v", 2, 7, 6)]
XW = [tensor("x", 33, 64), tensor("w", 64, 48)]


def both_sides(emit, x, w):
    rows = emit(op.nn.softmax(x, -1))
    return op.matmul(rows, emit(op.nn.softmax(w, -1)))


def centred(emit, x, w):
    mean = emit(op.mean(x, [-1], keepdims=True))
    return op.matmul(emit(op.subtract(x, mean)), w)


def rms(emit, x, g, w):
    return op.matmul(emit(op.nn.rms_norm(x, g, [-1], 1e-5)), w, "float32")


def two_results(emit, x, w):
    return [op.matmul(x, w), op.exp(x)]


def deviations(emit, v):
    """Squares of what is left of a row's sum: two reductions."""
    left = emit(op.subtract(v, emit(op.sum(v, -1, True))))
    return emit(op.sum(emit(op.multiply(left, left)), -1, True))


def squared_heads(emit, y):
    """Heads of 32 columns of a product, and the sum of the squares of each."""
    rows, columns = (int(d) for d in y.ty.shape.values)
    heads = emit(op.reshape(y, (rows, columns // 32, 32)))
    return heads, emit(op.sum(emit(op.multiply(heads, heads)), -1, True))


def of_other_heads(emit, heads, sums):
    return op.multiply(heads, emit(op.flip(sums, 1)))


CASES = [
    Case(
        "large_products",
        GroupedGemm(),
        [tensor(name, 300, 300) for name in "abcd"],
        lambda emit, a, b, c, d: [op.matmul(a, b), op.matmul(c, d)],
        ("far longer than a launch",),
    ),
    Case(
        "products_in_a_row",
        GroupedGemm(),
        [tensor(name, 20, 20) for name in "abc"],
        lambda emit, a, b, c: op.matmul(emit(op.matmul(a, b)), c),
        ("matmul reads another product's result",),
    ),
    Case("not_mine", Elementwise(False), XW, product, ("matmul is a reduction",)),
    Case(
        "one_operator_only",
        Single(False),
        [tensor("x", 4)],
        chain(2, op.exp),
        ("one operator alone",),
    ),
    Case(
        "unstructured",
        Elementwise(False),
        [tensor("x", 5, 7)],
        lambda emit, x: op.cumsum(emit(op.exp(x)), 1),
        ("cumsum does not consist of maps and reductions",),
    ),
    Case(
        "too_many_parameters",
        Elementwise(False),
        [tensor(f"x{i}", 4) for i in range(121)],
        lambda emit, *xs: [op.exp(x) for x in xs],
        ("242 parameters", "120"),
    ),
    Case(
        "large_contraction",
        Rows(),
        [tensor("x", 64, 64), tensor("w", 64, 64)],
        norm_then(product),
        ("at most 4 rows: matmul has 524,288 operations, and the rows are 64",),
    ),
    Case(
        "strided_contraction",
        Rows(),
        [tensor("x", 1, 64), tensor("w", 64, 48)],
        norm_then(product),
        ("An operand of matmul is not contiguous along its reduction",),
    ),
    Case(
        "several_reductions",
        CpuContraction(),
        XW,
        lambda emit, x, w: op.nn.softmax(emit(op.matmul(x, w)), -1),
        ("one reduction; there are 3 (matmul, softmax)",),
    ),
    Case(
        "several_reductions",
        GpuContraction(),
        XW,
        lambda emit, x, w: op.sum(emit(op.matmul(x, w)), -1),
        ("(matmul, sum)", "norm prologue"),
        True,
    ),
    Case(
        "several_reductions",
        GpuContraction(),
        [*XW, tensor("v", *XW[1].ty.shape.values)],
        lambda emit, x, w, v: op.add(*(emit(op.matmul(x, y)) for y in (w, v))),
        ("two products only if they share A", "have no wgmma tile that pays off"),
        True,
    ),
    Case(
        "no_norm_scale",
        GpuContraction(),
        [tensor("x", 1, 64), tensor("w", 64, 48)],
        centred,
        ("matmul is not fused behind mean",),
        True,
    ),
    Case(
        "no_row_sum",
        GpuContraction(),
        [*XW, tensor("v", int(XW[0].ty.shape.values[0]), 65)],
        lambda emit, x, w, v: op.multiply(emit(op.matmul(x, w)), deviations(emit, v)),
        ("at most 64 elements of each row", "sum is not such a float32 sum"),
        True,
    ),
    Case(
        "no_row_value",
        GpuContraction(),
        [*XW, tensor("v", int(XW[0].ty.shape.values[0]), 8)],
        lambda emit, x, w, v: op.greater(emit(op.matmul(x, w)), deviations(emit, v)),
        ("results of matmul read", "on a row alone"),
        True,
    ),
    Case(
        "no_group_sum",
        GpuContraction(),
        XW,
        lambda emit, x, w: [y := emit(op.matmul(x, w)), deviations(emit, y)],
        ("The results of sum", "64 adjacent columns of a result of matmul"),
        True,
    ),
    Case(
        "no_head_sum",
        GpuContraction(),
        [tensor("x", 33, 64), tensor("w", 64, 96)],
        lambda emit, x, w: op.multiply(*squared_heads(emit, emit(op.matmul(x, w)))),
        ("Sums over the heads of matmul", "only by GEMV and skinny GEMM"),
        True,
    ),
    Case(
        "no_head_sum",
        GpuContraction(),
        [tensor("x", 1, 64), tensor("w", 64, 96)],
        lambda emit, x, w: of_other_heads(emit, *squared_heads(emit, emit(op.matmul(x, w)))),
        ("sum is not one sum over each head of the columns of matmul",),
        True,
    ),
    Case(
        "no_statistics",
        GpuContraction(),
        [*XW, tensor("v", int(XW[0].ty.shape.values[0]), 8)],
        lambda emit, x, w, v: op.multiply(emit(op.matmul(x, w)), deviations(emit, v)),
        ("in the epilogue of matmul", "only by wgmma kernels"),
        True,
    ),
    Case(
        "not_skinny",
        GpuContraction(),
        [tensor("x", 33, 256), tensor("g", 256), tensor("w", 256, 128)],
        rms,
        ("GEMV and skinny GEMM only, which matmul is not",),
        True,
    ),
    Case(
        "epilogue_elsewhere",
        CpuContraction(),
        XW,
        lambda emit, x, w: (lambda y: op.add(y, emit(op.flip(y, 0))))(emit(op.matmul(x, w))),
        ("An element of", "result of matmul"),
    ),
    Case(
        "unrelated_output",
        CpuContraction(),
        XW,
        two_results,
        ("exp does not read what matmul computes",),
    ),
    Case("norm_not_operand_a", NormGemm(), XW, both_sides, ("exactly one operand of matmul",)),
    Case(
        "symbolic_k",
        NormGemm(),
        [tensor("x", 33, N), tensor("w", N, 48)],
        norm_then(product),
        ("reduction extent (K) of matmul is not known",),
    ),
    Case(
        "symbolic_window",
        NormGemm(),
        [tensor("x", 1, 24, N, N), tensor("w", 40, 24, 1, 1)],
        lambda emit, x, w: op.nn.conv2d(emit(op.nn.max_pool2d(x, (3, 3), (2, 2))), w),
        ("The rows of conv2d come from windows",),
    ),
    Case(
        "no_constant_weight",
        NormGemm(),
        [tensor("x", 1, 64), tensor("w", 64, 48)],
        norm_then(product),
        ("matmul has a single row",),
    ),
    Case(
        "not_along_rows",
        PrefixSum(True),
        [tensor("x", 5, 7)],
        lambda emit, x: op.cumsum(x, 0),
        ("cumsum does not scan the last axis",),
    ),
    Case(
        "not_in_place",
        PrefixSum(False),
        [tensor("x", 16, 16)],
        lambda emit, x: op.permute_dims(emit(op.cumsum(x, 1))),
        ("reads its elements elsewhere",),
    ),
    Case(
        "gathers",
        PrefixSum(False),
        [tensor("x", 5, 7), tensor("i", 7, dtype="int64")],
        lambda emit, x, i: op.cumsum(emit(op.take(x, i, 1)), 1),
        ("looks places up",),
    ),
    Case(
        "joined_image",
        CpuConvolution(),
        [tensor(n, 1, 32, 8, 8) for n in "xy"],
        lambda emit, x, y: op.nn.conv2d(emit(op.concat([x, y], 1)), ones(64, 1, 3, 3), groups=64),
        ("read by float32 tiles",),
    ),
    Case("several_axes", Attention(False), QKV, attention(norm=softmax_of_both_axes), ("max",)),
    Case("no_softmax", Attention(False), QKV, attention(norm=two_maxima), ("after matmul (max)",)),
    Case(
        "second_product",
        Attention(False),
        [QKV[0], tensor("k", 2, 9, 8), tensor("v", 2, 9, 9)],
        attention(second=lambda emit, p, v: op.matmul(v, p)),
        ("matmul does not reduce the axis of the softmax",),
    ),
    Case("scores_used_elsewhere", Attention(False), QKV, scores_and_more, ("relu reads scores",)),
    Case("unsupported_dtype", Attention(False), QKV64, attention(), ("float64", "float32")),
    Case("scores_elsewhere", Attention(False), QKV, attention(norm=shifted_rows), ("own row",)),
    Case("weights_changed", Attention(False), QKV, attention(weigh=op.square), ("not linear",)),
    Case("symbolic_head", Attention(False), SYMBOLIC, attention(), ("symbolic",)),
    Case("head_too_large", Attention(False), LARGE, attention(), ("600; the limit is 576",)),
    Case(
        "row_too_long",
        Rows(),
        [tensor("x", 2, 40000, 16)],
        mirrored,
        ("The results of sum need 160000 bytes of shared memory",),
        True,
    ),
    Case("expression_too_large", CpuContraction(), XW, doubling, ("multiply", "2000 nodes")),
    Case("prologue_recomputed", CpuContraction(), XW, leaving_prologue, ("compute exp again",)),
    Case(
        "vectors_across_rows",
        NormGemm(),
        [tensor("x", 33, 4), tensor("w", 4, 48)],
        norm_then(product),
        ("before matmul",),
    ),
    Case(
        "query_varies_with_key",
        Attention(False),
        [tensor("q", 9, 7, 8), tensor("k", 7, 8), tensor("v", 7, 6)],
        query_per_key,
        ("Both operands of einsum",),
    ),
    *KERNEL_CASES,
    *LAYER_CASES,
]


def _name(case):
    return f"{case.code}-{case.template.name}" + ("-gpu" if case.on_gpu else "")


@pytest.mark.parametrize("case", CASES, ids=_name)
def test_a_template_says_why_not(case):
    refusal = case.template.claim(case.group, case.device)
    assert isinstance(refusal, Refusal), refusal
    assert refusal.code == case.code, refusal
    assert all(words in refusal.sentence for words in case.says), refusal.sentence
    assert refusal.sentence.endswith(".")


# Edges -------------------------------------------------------------------------------------------


def two_products(emit, x, w, v):
    return op.matmul(emit(op.nn.relu(emit(op.matmul(x, w)))), v)


def after(producer, consumer):
    def body(emit, *params):
        return consumer(emit(producer(*params)))

    return body


def flipped_epilogue(emit, x, w):
    y = emit(op.matmul(x, w))
    return op.add(y, emit(op.flip(y, 0)))


def norm_gemm(emit, x, g, w):
    return op.matmul(emit(op.nn.layer_norm(x, g, g, [-1])), w)


def around(emit, x):
    a = emit(op.nn.softmax(x, -1))
    return op.add(a, emit(op.permute_dims(emit(op.cumsum(a, 0)))))


SQUARE = [tensor(n, 64, 64) for n in "xwv"]
EDGES = [
    (
        "mapping_red",
        SQUARE,
        two_products,
        "relu -> matmul",
        "Many-to-Many (matmul) feeding Many-to-Many (matmul) is not fused (DNNFusion's mapping "
        "table), and no template proposed to fuse them.",
    ),
    (
        "mapping_red",
        [SQUARE[0], tensor("g", 64), SQUARE[1]],
        norm_gemm,
        "layer_norm -> matmul",
        "a template's proposal to fuse layer_norm + matmul was refused: rows: A row kernel takes",
    ),
    (
        "opaque",
        SQUARE[:1],
        after(lambda x: op.sort(x, 0), op.exp),
        "sort -> sorted_numbers",
        "sort is opaque: ",
    ),
    ("too_many_members", SQUARE[:1], chain(100, op.exp), "exp -> exp", "would have 100 operators"),
    (
        "not_profitable",
        [tensor("x", 2, 40000, 16)],
        mirrored,
        "sum -> add",
        "times the operations, ",
    ),
    (
        "epilogue_elsewhere",
        SQUARE[:2],
        flipped_epilogue,
        "matmul -> add",
        "contraction: An element of add needs more than one element of the result of matmul",
    ),
    (
        "mapping_red",
        IMAGE,
        behind(conv, lambda y: op.nn.max_pool2d(y, (3, 3), (2, 2))),
        "conv2d -> max_pool2d",
        "convolution: The pooling is not over tiles of rows and columns",
    ),
    (
        "not_convex",
        SQUARE[:1],
        around,
        "softmax -> add",
        "make a cycle through cumsum, which is not among them",
    ),
]


@pytest.mark.parametrize(
    ("code", "params", "body", "edge", "says"), EDGES, ids=[f"{e[0]}-{e[3]}" for e in EDGES]
)
def test_an_edge_says_why_it_is_not_fused(code, params, body, edge, says):
    target = "cuda:sm_90a" if edge == "layer_norm -> matmul" else "cpu:x86-64-v4"
    found = tvm_fusion.explain(main_module(params, body), target, stock=False).refused
    edges = [(f"{e.producer.title} -> {e.consumer.title}", e.code) for e in found]
    assert (edge, code) in edges
    assert says in found[edges.index((edge, code))].sentence


def test_a_proposal_that_a_better_one_overlaps():
    mod = main_module([tensor("x", 6, 8)], chain(3, op.nn.softmax))
    a, b, c = (found.name for found in graph_of(mod).operators)
    (edge,) = (
        d for d in planned(mod, Anchored(2, ((a, b), (b, c)))).decisions if d.code != "fused"
    )
    assert edge.code == "mapping_red"
    assert "A proposal that saves at least as much has some of these operators" in edge.sentence


def test_a_broken_claim_is_not_made_again():
    members = group([tensor("x", 6, 8)], chain(1, op.exp))
    book = ClaimBook(
        (Elementwise(False),), CPU.device, CostModel(CPU.device), {("elementwise", members.key)}
    )
    refusal = book.claim(members)
    assert refusal.code == "claim_broken"
    assert "failed after it was claimed" in refusal.sentence


def test_an_update_that_is_no_reduction():
    (members,) = (Group([o]) for o in graph_of(Horner).operators)
    refusal = Rows().claim(members, CUDA.device)
    assert refusal.code == "no_combiner"
    assert "horner: the update is not a sum, product, extremum or selection" in refusal.sentence


def test_groups_of_fewer_channels_than_a_vector(monkeypatch):
    # As the widest vectors would have them, if twice the multiplications were too many.
    monkeypatch.setattr(groups, "MOST_WASTE", 1)
    members = group(IMAGE, lambda e, x: op.nn.conv2d(x, ones(16, 2, 3, 3), groups=8))
    refusal = CpuConvolution().claim(members, CPU.device)
    assert refusal.code == "groups_in_a_vector"
    assert "A vector of output channels would span several groups" in refusal.sentence


def test_a_map_whose_point_is_not_known_from_an_element():
    def body(emit, x):
        y = emit(op.exp(x))
        return op.divide(y, emit(op.sum(y, [1], keepdims=True)))

    members = group([tensor("x", 8, 16)], body, CPU)
    first, *others = members.program.stages
    halves = tuple(tirx.floordiv(i, tirx.const(2, "int64")) for i in first.indices[0])
    program = replace(members.program, stages=(replace(first, indices=(halves,)), *others))
    refusal = inlined_size(program)
    assert refusal.code == "not_inlinable"
    assert "exp cannot be inlined into its readers" in refusal.sentence


def test_a_group_that_is_far_from_every_template():
    far = {name: Refusal("not_mine", "It has no rows.") for name in ("rows", "columns")}
    refusal = RefusedByAll(far | {"single": Refusal("one_operator_only", "It has two operators.")})
    assert refusal.code == "no_template"
    assert refusal.sentence == "rows, columns: It has no rows."


# Codes -------------------------------------------------------------------------------------------

ELSEWHERE = {
    "better_proposal",  # test_a_proposal_that_a_better_one_overlaps
    "groups_in_a_vector",  # test_groups_of_fewer_channels_than_a_vector
    "more_than_scores",  # tests/schedule/attention/test_attention_refusals.py
    "claim_broken",  # test_a_broken_claim_is_not_made_again
    "no_combiner",  # test_an_update_that_is_no_reduction
    "no_such_config",  # of tuning: tests/schedule/test_design_spaces.py
    "not_inlinable",  # test_a_map_whose_point_is_not_known_from_an_element
    "records_of_other_devices",  # of tuning: tests/fusion/test_tuned_configs.py
    "no_template",  # test_a_group_that_is_far_from_every_template
}


def codes(*rooms):
    """All codes that refusals in the package's source are made with, constants resolved."""
    package = Path(tvm_fusion.__file__).parent
    found, names = set(), {}
    trees = [ast.parse(p.read_text()) for r in rooms for p in (package / r).rglob("*.py")]
    for node in (n for tree in trees for n in tree.body if isinstance(n, ast.Assign)):
        if isinstance(node.value, ast.Constant):
            names |= {t.id: node.value.value for t in node.targets if isinstance(t, ast.Name)}
    for node in (n for tree in trees for n in ast.walk(tree)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Refusal":
            for part in ast.walk(node.args[0]):
                given = part.value if isinstance(part, ast.Constant) else None
                given = names.get(part.id) if isinstance(part, ast.Name) else given
                found |= {given} if isinstance(given, str) else set()
    return found


def test_codes_of_constants_are_found(tmp_path, monkeypatch):
    (tmp_path / "room").mkdir()
    source = '_CODE = "hidden"\nx = Refusal(_CODE, "A.")\ny = Refusal("a" if x else "b", "B.")\n'
    (tmp_path / "room" / "one.py").write_text(source)
    monkeypatch.setattr(tvm_fusion, "__file__", str(tmp_path / "__init__.py"))
    assert codes("room") == {"hidden", "a", "b"}


@pytest.mark.slow
def test_every_code_has_a_case():
    tested = {case.code for case in CASES} | {edge[0] for edge in EDGES}
    assert codes("fusion", "schedule") - ELSEWHERE == tested
