"""What is explained is what is compiled."""

import io
import json
import re
from dataclasses import replace

import onnx
import parallel_models
import planted
import pytest
import tiny_models
import tvm
from onnx import TensorProto as T
from onnx import parser
from rich.console import Console
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_fusion
from tvm_fusion import DimRange, FusionConfig, UserError
from tvm_fusion.deploy.count import count_stock
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.device import parse
from tvm_fusion.ecg.mapping_types.table import MappingType, Relation, combine
from tvm_fusion.report.explain import Explanation

pytestmark = pytest.mark.slow_beyond(2)


@pytest.fixture
def explanation(monkeypatch):
    """Of the model with groups that do not depend on the package's templates."""
    planted.plant(monkeypatch)
    return tvm_fusion.explain(planted.model())


def printed(explanation, width=80):
    text = io.StringIO()
    explanation.show(Console(file=text, width=width))
    return text.getvalue()


def test_groups(explanation):
    titles = ["matmul + exp + tanh", "matmul + relu", "matmul + exp + tanh"]
    assert [g.title for g in explanation.groups] == titles
    first = explanation.groups[0]
    assert [m.operator for m in first.members] == ["relax.matmul", "relax.exp", "relax.tanh"]
    assert [m.type for m in first.members] == ["Many-to-Many", "One-to-One", "One-to-One"]
    assert (first.type, first.template, first.launches) == ("Many-to-Many", "merged", 1)
    assert first.function == "main"
    assert first.bytes == 4 * (48 + 64 + 48)
    assert first.hidden_bytes == 4 * 2 * 48
    assert first.us > 0
    assert first.source in ("roofline", "fitted")  # fitted on machines that were measured


def test_refused_edges(explanation):
    found = [(e.producer.title, e.consumer.title, e.code) for e in explanation.refused]
    assert found == [("tanh", "matmul", "mapping_red"), ("relu", "matmul", "mapping_red")]
    edge = explanation.refused[0]
    assert edge.producer.type == "One-to-One"
    assert edge.classes == ("Many-to-Many", "Many-to-Many")  # of the groups, as the sentence has it
    assert edge.bytes == 4 * 48
    assert "Many-to-Many (matmul) feeding Many-to-Many (matmul) is not fused" in edge.sentence
    assert edge.producer.variable == explanation.groups[0].members[-1].variable


def test_every_edge_is_inside_a_group_or_refused(explanation):
    inside = sum(len(g.members) - 1 for g in explanation.groups)
    assert inside + len(explanation.refused) == 7


@pytest.mark.slow
def test_counts_are_those_of_the_compilation(tmp_path):
    model = planted.model()
    found = tvm_fusion.explain(model)
    artifact = tvm_fusion.compile(model).export(tmp_path / "a")
    function = manifest.read(artifact)["functions"]["main"]
    assert found.counts.kernels == function["kernels"] >= 1
    assert found.counts.calls == function["calls"]
    assert found.counts.intermediate_bytes == function["intermediate_bytes"]


def test_stock_is_counted_from_tvms_own_import():
    model = planted.model()
    found = tvm_fusion.explain(model)
    stock = count_stock(from_onnx(model), parse("cpu").tvm_target())
    assert found.stock_from == "TVM's importer"
    assert found.stock.kernels == stock.kernels
    assert found.stock.intermediate_bytes == stock.intermediate_bytes
    assert tvm_fusion.explain(model, stock=False).stock is None


def test_why_stock_was_not_given_the_file(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ValueError("no such operator")

    monkeypatch.setattr("tvm.relax.frontend.onnx.from_onnx", refuse)
    found = tvm_fusion.explain(planted.model())
    assert found.stock_from == "this package's importer"
    (decision,) = found.fallbacks
    assert decision.code == "stock_import_failed"
    assert "no such operator" in decision.sentence


def test_stock_that_cannot_be_compiled(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr("tvm_fusion.report.explain.run.count_stock", refuse)
    found = tvm_fusion.explain(planted.model())
    assert found.stock is None
    decision = found.fallbacks[-1]
    assert decision.code == "stock_failed"
    assert "AssertionError: a check failed" in decision.sentence


def test_scatters_are_opaque_in_one_sentence():
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        graph (float[5] x, int64[3] i, float[3] u) => (float[5] y) {
            a = Abs (x)
            s = ScatterElements (a, i, u)
            y = Neg (s)
        }"""
    )
    sentences = [e.sentence for e in tvm_fusion.explain(model, stock=False).refused]
    assert sentences
    assert all(s.endswith(".") and ".." not in s for s in sentences)


def test_stock_is_not_counted_where_a_loop_ends_at_run_time():
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        graph (float[5] x, float limit) => (float[5] last) <bool yes = {1}, float half = {0.5}> {
            last = Loop (, yes, x) <body = step (int64 i, bool go, float[5] s)
                => (bool again, float[5] next) {
                next = Mul (s, half)
                sum = ReduceSum <keepdims = 0> (next)
                again = Greater (sum, limit)
            }>
        }"""
    )
    found = tvm_fusion.explain(model)
    assert found.stock is None
    decision = found.fallbacks[-1]
    assert decision.code == "stock_loop_not_counted"
    assert "its passes hide how long the loops are" in decision.sentence


def test_a_gpu_that_is_not_here():
    found = tvm_fusion.explain(planted.model(), "cuda:sm_90a")
    assert found.target == "cuda:sm_90a"
    assert 0 < found.counts.kernels <= found.stock.kernels


def test_symbolic_dimensions():
    config = FusionConfig(dims={"batch": DimRange(1, 100)})
    found = tvm_fusion.explain(tiny_models.dense(), "cpu", config)
    assert found.stock_from == "this package's importer"
    assert found.assumed_dim == 128
    assert "Estimates assume 128 for every symbolic dimension" in str(found)
    assert tvm_fusion.explain(planted.model()).assumed_dim is None


@pytest.mark.parametrize("name", ["relax.nn.relu", "nn.relu", "relu"])
def test_restricted_to_an_operator(explanation, name):
    found = explanation.of(name)
    assert [g.title for g in found.groups] == ["matmul + relu"]
    assert [e.producer.title for e in found.refused] == ["relu"]
    assert found.counts == explanation.counts


def test_restricted_to_a_variable(explanation):
    last = explanation.groups[-1].members[-1].variable
    found = explanation.of(last)
    assert found.groups == explanation.groups[-1:]
    assert found.refused == ()


def test_an_operator_that_the_model_does_not_have(explanation):
    with pytest.raises(
        UserError, match=r"no operator is called 'rellu'; .*; name one of relu"
    ) as found:
        explanation.of("rellu")
    assert "\n" not in str(found.value)
    with pytest.raises(UserError, match="name one of exp, matmul, relu, tanh"):
        explanation.of("something else")


def test_json_holds_all_of_it(explanation):
    data = json.loads(json.dumps(explanation.to_json()))
    assert {
        "kernels", "stock_kernels", "intermediate_bytes", "stock_intermediate_bytes", "groups",
        "refused",
    } <= set(data)  # fmt: skip
    assert {"producer", "consumer", "code", "sentence", "classes"} <= set(data["refused"][0])
    assert data["groups"][1]["title"] == "matmul + relu"
    again = Explanation.from_json(data)
    assert printed(again) == printed(explanation)
    assert again.of("relu").groups == explanation.of("relu").groups


def test_equal_groups_are_one_row(explanation):
    text = printed(explanation, 100)
    assert text.count("matmul + exp + tanh") == 1
    assert "2 x   matmul + exp + tanh" in text
    assert "matmul + relu" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_keep_to_the_width(explanation, width):
    lines = printed(explanation, width).splitlines()
    table = lines[lines.index(next(line for line in lines if line.startswith("Groups"))) :]
    assert max(map(len, table)) <= width
    words = " ".join(" ".join(table).split())
    assert "mapping_red" in words


def test_str_is_what_show_prints(explanation):
    assert str(explanation) == printed(explanation, 100).rstrip("\n")


def test_names_are_no_markup(monkeypatch, tmp_path):
    planted.plant(monkeypatch)
    model = tiny_models.onnx_model(
        [("Relu", ["x"], ["y"])], [("x", T.FLOAT, [3])], [("y", T.FLOAT, [3])]
    )
    path = tmp_path / "a [b] [red].onnx"
    onnx.save(model, path)
    assert str(tvm_fusion.explain(path)).startswith("a [b] [red].onnx for cpu")


def test_a_broken_claim_is_told(monkeypatch):
    planted.plant(monkeypatch, planted.raising)
    found = tvm_fusion.explain(planted.model())
    assert {d.code for d in found.fallbacks} == {"claim_broken"}
    assert "no such schedule" in " ".join(str(found).split())


def test_views_and_several_functions(monkeypatch):
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((48,), "float32"):
            with R.dataflow():
                a = R.nn.softmax(x)
                b = R.reshape(a, (48,))
                R.output(b)
            return b

        @R.function
        def other(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            with R.dataflow():
                a = R.tanh(x)
                R.output(a)
            return a

    planted.plant(monkeypatch)
    found = tvm_fusion.explain(Mod)
    assert {(g.function, g.title) for g in found.groups} == {("main", "softmax"), ("other", "tanh")}
    assert [v.title for v in found.views] == ["reshape"]
    assert "Views, which need no kernel: reshape (b)" in str(found)


@I.ir_module
class ThroughViews:
    @R.function
    def main(x: R.Tensor((6, 8), "float32"), w: R.Tensor((4, 5), "float32")) -> R.Tensor(
        (12, 5), "float32"
    ):
        with R.dataflow():
            a = R.nn.softmax(x)
            b = R.reshape(a, (12, 4))
            c = R.matmul(b, w)
            d = R.nn.relu(c)
            R.output(d)
        return d


def test_edges_through_views_are_listed(monkeypatch):
    planted.plant(monkeypatch)
    found = tvm_fusion.explain(ThroughViews, stock=False)
    assert [v.variable for v in found.views] == ["b"]
    (edge,) = found.refused
    assert (edge.producer.variable, edge.consumer.variable) == ("a", "c")
    assert edge.through == found.views
    assert (edge.bytes, edge.code) == (4 * 48, "mapping_red")
    words = " ".join(str(found).split())
    assert "softmax -> (reshape) -> matmul" in words
    again = Explanation.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    assert found.of("reshape").refused == found.refused


def test_classes_are_those_that_the_sentence_is_about(monkeypatch):
    planted.plant(monkeypatch)
    for model in (planted.model(), ThroughViews):
        for edge in tvm_fusion.explain(model, stock=False).refused:
            cell = combine(*map(MappingType, edge.classes))
            assert (cell.relation is Relation.BREAK) == (edge.code == "mapping_red")
            first, second = edge.classes
            found = rf"{first} \(.+\) feeding {second} \(.+\) is not fused"
            assert re.search(found, edge.sentence)


def test_operators_of_one_name_are_told_apart(monkeypatch):
    planted.plant(monkeypatch)
    ty = R.Tensor((8, 8), "float32")
    x, w = relax.Var("x", ty), relax.Var("w", ty)
    lv = [relax.DataflowVar("lv", ty), relax.DataflowVar("lv", ty), relax.Var("lv", ty)]
    calls = [relax.op.matmul(x, w), relax.op.matmul(lv[0], w), relax.op.nn.softmax(lv[1])]
    block = relax.DataflowBlock([relax.VarBinding(v, c) for v, c in zip(lv, calls, strict=True)])
    main = relax.Function([x, w], relax.SeqExpr([block], lv[2]), ty)
    mod = tvm.IRModule({"main": main.with_attr("global_symbol", "main")})
    found = tvm_fusion.explain(relax.transform.Normalize()(mod), stock=False)
    variables = [m.variable for g in found.groups for m in g.members]
    assert len(set(variables)) == 3
    assert [(e.producer.variable, e.consumer.variable) for e in found.refused] == [
        tuple(variables[:2]),
        tuple(variables[1:]),
    ]


def attention():
    shape = [1, 2, 16, 8]
    return tiny_models.onnx_model(
        [
            ("Transpose", ["k"], ["turned"], {"perm": [0, 1, 3, 2]}),
            ("MatMul", ["q", "turned"], ["scores"]),
            ("Softmax", ["scores"], ["weights"]),
            ("MatMul", ["weights", "v"], ["y"]),
        ],
        [(name, T.FLOAT, shape) for name in "qkv"],
        [("y", T.FLOAT, shape)],
    )


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_an_operator_that_the_model_spells_out_may_be_asked_for(target):
    found = tvm_fusion.explain(attention(), target, stock=False)
    assert "attention" in found.recomposed
    assert "softmax" in [m.title for g in found.of("attention").groups for m in g.members]
    without = replace(
        found, groups=tuple(replace(group, template="another") for group in found.groups)
    )
    (group,) = without.of("attention").groups  # where no template is called so
    assert "softmax" in group.title
    with pytest.raises(UserError, match=r"name one of .*attention"):
        found.of("nothing like it")


def test_opaque_operators_are_told():
    @I.ir_module
    class Mod:
        @R.function
        def main(x: R.Tensor((6, 8), "float32")) -> R.Tensor((6, 8), "float32"):
            with R.dataflow():
                a = R.tanh(x)
                b = R.call_pure_packed("some.function", a, ty_args=R.Tensor((6, 8), "float32"))
                R.output(b)
            return b

    found = tvm_fusion.explain(Mod, stock=False)
    assert [o.variable for o in found.opaque] == ["b"]
    assert [(e.producer.variable, e.consumer.variable, e.code) for e in found.refused] == [
        ("a", "b", "opaque")
    ]
    assert "Opaque, never fused" in str(found)


def test_forms_of_kernels_are_told():
    """The product's rows are not aligned: wgmma reads copies, which are estimated to be faster."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "odd (float16[77, 7207] x, float16[7207, 4210] w) => (float16[77, 4210] y)"
        "{ h = MatMul(x, w) y = Relu(h) }"
    )
    found = tvm_fusion.explain(model, "cuda:sm_90a", stock=False, forms=True)
    assert Explanation.from_json(json.loads(json.dumps(found.to_json()))) == found
    (group,) = found.groups
    forms = {form.name: form for form in group.forms}
    assert forms["aligned rows"].is_chosen
    assert forms["aligned rows"].clocks < forms["as it is"].clocks
    text = printed(found, 160)
    assert "Forms of matmul + relu" in text
    (row,) = (line for line in text.splitlines() if " aligned rows " in line)
    assert row.split()[0] == "*"
    assert f"{forms['aligned rows'].clocks / 1e3:.1f}" in row
    assert "Its sum has a single axis: there is no window." in text
    plain = tvm_fusion.explain(model, "cuda:sm_90a", stock=False)
    assert plain.groups[0].forms == plain.groups[0].templates == ()
    assert "Forms of" not in printed(plain)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cuda:sm_90a"])
def test_templates_that_were_asked_are_told(target):
    """Of three operators each is claimed by another template; the last by the fallback, too."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "three (float[64, 256] x, float[256, 256] w) => (float[64, 256] y, float[64, 256] z)"
        "{ h = MatMul(x, w) y = Relu(h) z = Softmax(y) }"
    )
    found = tvm_fusion.explain(model, target, stock=False, forms=True)
    assert Explanation.from_json(json.loads(json.dumps(found.to_json()))) == found
    product, softmax = ({a.template: a for a in group.templates} for group in found.groups)
    assert [a.template for a in product.values() if a.is_chosen] == ["contraction"]
    assert [a.template for a in product.values() if a.us is not None] == ["contraction"]
    assert softmax["rows"].is_chosen
    assert not softmax["rows"].sentence
    assert softmax["rows"].us < softmax["single"].us
    assert "no other template" in softmax["single"].sentence
    text = printed(found, 160)
    (row,) = (line for line in text.splitlines() if "*   contraction" in line)
    assert row.split()[-1] == f"~{product['contraction'].us:.1f}"
    assert "softmax is a reduction." in text


def test_a_template_that_loses_by_its_price_is_told():
    """Few long rows take one launch or two."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "long (float[4, 262144] x, float[262144] g) => (float[4, 262144] y)"
        "{ y = LayerNormalization(x, g) }"
    )
    (group,) = tvm_fusion.explain(model, "cuda:sm_90a", stock=False, forms=True).groups
    answers = {a.template: a for a in group.templates}
    assert answers["split_rows"].is_chosen
    assert answers["split_rows"].us < answers["rows"].us
    assert answers["rows"].sentence == "Estimated to be no faster."


def test_a_half_precision_model_is_explained_in_it():
    config = FusionConfig(precision="fp16")
    found = tvm_fusion.explain(planted.model(), "cpu", config)
    assert found.stock_from == "this package's importer"
    assert isinstance(found.stock.kernels, int)


def test_what_is_explained_is_not_changed():
    mod, same = from_onnx(planted.model()), from_onnx(planted.model())
    tvm_fusion.explain(mod, stock=False)
    tvm.ir.assert_structural_equal(mod, same)


def test_workers_have_their_sentences_in_every_form():
    options = {"workers": 2, "shards": {"*": "split"}}
    found = tvm_fusion.explain(parallel_models.experts(), "cuda:sm_90a", options)
    (told,) = found.workers
    assert told.sentence.startswith("2 workers have parts of ")
    assert found.stock is None
    assert "2 workers have parts of " in str(found)
    assert type(found).from_json(found.to_json()).workers == found.workers
