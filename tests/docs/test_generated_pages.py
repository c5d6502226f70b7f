"""Pages made of the code: no law, pass or code is missing, and links lead to pages."""

import re
from textwrap import dedent

import pytest
import tvm
from tvm import relax
from tvm.ir.transform import Sequential

from docs.pages import codes, copies, laws, mapping, passes, write
from tvm_fusion import transform
from tvm_fusion.core.decisions import recording
from tvm_fusion.rewrite.egraph.law import Law
from tvm_fusion.rewrite.laws import LAWS
from tvm_fusion.rewrite.recompose.patterns import PATTERNS


def test_every_law_and_pattern_has_its_equation():
    rows = [row.split(" | ") for row in laws.page().splitlines() if row.startswith("| `")]
    equations = {row[0].strip("| `"): row[1] for row in rows}
    assert equations.keys() == {one.name for one in (*LAWS, *PATTERNS)}
    assert equations["negate_sum"] == "`-a + -b ⇄ -(a + b)`"
    assert all("=" in text or "⇄" in text for text in equations.values())


def test_every_condition_of_a_law_is_told():
    rows = [
        row.strip("| ").split(" | ") for row in laws.page().splitlines() if row.startswith("| `")
    ]
    told = {row[0].strip("`"): row[-1].strip("| ") for row in rows}
    conditional = [law for law in LAWS if type(law).check is not Law.check]
    assert all(told[law.name] for law in conditional if getattr(law, "_condition", True))
    assert told["add_columns"].startswith("where one summand is broadcast along rows or columns;")
    assert told["permute_to_itself"] == "where axes change places"
    assert told["absolute_of_nonnegative"] == "where a tensor may be negative"
    assert told["mean_of_offset"].endswith("where integer division drops a remainder")


def test_every_pass_is_documented_once():
    named = re.findall(r"auto(?:class|function):: (\w+)\(", passes.page())
    assert sorted(named) == sorted(transform.__all__)


def test_the_mapping_table_has_its_25_cells():
    text = mapping.page()
    assert text.count("fused: ") + text.count("depends: ") + text.count("not fused") == 25
    row = next(line for line in text.splitlines() if line.startswith("| **Many-to-Many**"))
    assert row.split(" | ")[5].startswith("not fused")


SOURCE = """
    CODE = "by_name"

    class Refusal:
        code: str
        sentence: str

    class Narrower(Refusal):
        pass

    def refuse(where, code: str, sentence):
        return Refusal(code, sentence)

    def verdicts(n, price):
        yield Refusal("plain", "A sentence.")
        yield Refusal(CODE, f"{n} of {len(price)} values.")
        yield refuse("here", "passed_on", "By a function." if n else "Otherwise.")
        yield Narrower(sentence="In " + "two parts.", code="keywords")
        if n > 3:
            code, sentence = "first", "The first."
        else:
            code = "second"
            sentence = "The second."
        yield Refusal(code, sentence)
"""


def test_codes_are_read_from_calls(tmp_path):
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "a.py").write_text(dedent(SOURCE))
    assert codes.codes(tmp_path) == {
        ("stage", "by_name"): ["… of … values."],
        ("stage", "first"): ["The first."],
        ("stage", "keywords"): ["In two parts."],
        ("stage", "passed_on"): ["By a function.", "Otherwise."],
        ("stage", "plain"): ["A sentence."],
        ("stage", "second"): ["The second."],
    }


def test_every_code_of_the_package_has_a_sentence():
    """What looks like a code where a verdict is made is on the page."""
    known, made = {code for _, code in codes.codes()}, r'(?:Decision|Refusal)\([^)"]*"(\w+_\w+)"'
    written = {c for p in codes.ROOT.rglob("*.py") for c in re.findall(made, p.read_text())}
    assert len(written) > 100
    assert written <= known


def test_decisions_of_a_compilation_are_on_the_page():
    x = relax.Var("x", relax.TensorType((8, 16), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            exponents = builder.emit(relax.op.exp(x))
            total = builder.emit(relax.op.sum(exponents, axis=[1], keepdims=True))
            out = builder.emit_output(relax.op.divide(exponents, total))
        builder.emit_func_output(out)
    stages = ("Rewrite", "Legalize", "FuseOperators", "ScheduleKernels")
    with tvm.target.Target("llvm"), recording() as taken:
        Sequential([getattr(transform, name)() for name in stages])(builder.get())
    found = {decision.code for decision in taken}
    assert found
    assert found <= {code for _, code in codes.codes()}


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("[prices](../prices/README.md#how)", "[prices](prices.md#how)"),
        ("[a](results/a.json) and [b](https://b.org)", "a and [b](https://b.org)"),
        ("![p](results/p.svg)", "![p](../../../benchmarks/gpu/results/p.svg)"),
        ("[here](#limits)", "[here](#limits)"),
    ],
)
def test_links_between_files_become_links_between_pages(text, page):
    names = {"benchmarks/gpu/README.md": "benchmarks/gpu", "benchmarks/prices/README.md":
             "benchmarks/prices"}  # fmt: skip
    assert copies.relinked(text, "benchmarks/gpu/README.md", names) == page


def test_links_to_folders_lead_to_pages_of_records():
    """Pages of the compiler itself are made of records alone, which must hold something."""
    path = "benchmarks/README.md"
    linked = re.findall(r"\]\((\w+)\)", (copies.ROOT / path).read_text())
    assert sorted(set(linked)) == sorted(copies.RECORDED)
    made = copies.pages()
    assert all(f"({name}.md)" in made["benchmarks/all_results"] for name in copies.RECORDED)
    assert all("\n| --- |" in made[f"benchmarks/{name}"] for name in copies.RECORDED)
    assert "[fitted to these times](cost_model.md)" in made["benchmarks/amd_clocks"]


def test_pages_are_written_once_and_old_ones_go(tmp_path):
    write(tmp_path, {"a/b": "text", "c": "more"})
    before = (tmp_path / "a/b.md").stat().st_mtime_ns
    write(tmp_path, {"a/b": "text"})
    assert [p.name for p in tmp_path.rglob("*.md")] == ["b.md"]
    assert (tmp_path / "a/b.md").stat().st_mtime_ns == before
