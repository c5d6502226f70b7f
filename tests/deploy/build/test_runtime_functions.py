"""What runtime libraries have, as processes without the compiler say."""

import pytest

from tvm_fusion.deploy.build.packed_functions import COMMON, EXTRA, _names, is_compilers, library_of


def test_functions_of_all_bytecode_are_in_the_runtime():
    assert _names("tvm_runtime") >= COMMON


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("vm.builtin.multinomial_from_uniform", "tvm_runtime"),
        ("vm.builtin.cuda_graph.run_or_capture", "tvm_runtime_cuda"),
        ("tvm.contrib.sort.topk", EXTRA),
        ("relax.run.unique", None),
        ("no.such.function", None),
    ],
)
def test_libraries_are_told(name, library):
    assert library_of(name) == library
    assert is_compilers(name) == (name == "relax.run.unique")
