"""The user's names on variables: carried, read, and of no consequence for anything else."""

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_fusion.core.names.source import (
    MOST,
    Recorder,
    Source,
    attach,
    bindings_of,
    joined,
    names_of,
    sources_of,
    span_of,
)


@I.ir_module
class Chain:
    @R.function
    def main(x: R.Tensor((2, 3), "float32")):
        with R.dataflow():
            a = R.exp(x)
            b = R.tanh(a)
            c = R.nn.relu(b)
            R.output(c)
        return c


def by_variable(mod):
    return {b.var.name: names_of(sources_of(b.var)) for b in bindings_of(mod["main"].body)}


@pytest.mark.parametrize(
    "name",
    [
        "/layer1/Conv",
        "a b\tc\nd",
        "größe/卷积",
        'it\'s "quoted" \\n',
        "",
        "%s{0}",
        "x" * 5000,
        "[0]*",
    ],
)
def test_names_come_back_as_they_were(name):
    sources = (Source(name, (name, "t")), Source("", (name,)))
    assert sources_of(relax.Var("v", R.Tensor((1,), "float32"), span_of(sources))) == sources


def test_separators_are_left_out():
    (found,) = sources_of(
        relax.Var("v", R.Tensor((1,), "float32"), span_of((Source("a\x1eb\x1f"),)))
    )
    assert found == Source("ab")


def test_what_to_call_a_source():
    assert names_of([Source("n", ("t",)), Source("", ("t", "u")), Source("n"), Source("")]) == (
        "n",
        "t",
    )
    assert sources_of(relax.Var("v", R.Tensor((1,), "float32"))) == ()
    assert span_of(()) is None


def test_joined_sources_are_bounded():
    many = [(Source(f"n{i}"), Source("common")) for i in range(3 * MOST)]
    assert len(joined(many)) == MOST
    assert joined(many)[:3] == (Source("n0"), Source("common"), Source("n1"))


def test_attached_names_change_no_structure():
    recorder = Recorder()
    _, second, _ = bindings_of(Chain["main"].body)
    recorder.add([second.value], "Tanh_7", ["t"])
    recorder.add([second.value, None, 3], "again", ["u"])  # an alias of it
    named = attach(Chain, recorder.of)
    tvm.ir.assert_structural_equal(named, Chain)
    # What is not told comes from the first that reads it, or else from what it reads.
    assert by_variable(named) == dict.fromkeys("abc", ("Tanh_7",))
    assert by_variable(Chain) == dict.fromkeys("abc", ())
    assert named.script() == Chain.script()
    again = attach(named, lambda binding: (Source("other"),))
    assert by_variable(again) == by_variable(named)


def test_names_in_branches():
    @I.ir_module
    class Branches:
        @R.function
        def main(x: R.Tensor((2,), "float32"), c: R.Tensor((), "bool")):
            if c:
                a = R.exp(x)
                r = R.add(a, a)
            else:
                b = R.tanh(x)
                r = R.multiply(b, b)
            return r

    named = attach(Branches, lambda binding: (Source("", (binding.var.name,)),))
    tvm.ir.assert_structural_equal(named, Branches)
    assert {"a", "b"} <= by_variable(named).keys()
    assert all(names for names in by_variable(named).values())
