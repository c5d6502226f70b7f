"""The table of claimed against allocated resources: misses, spills, kernels of several launches."""

import json

import numpy as np
import pytest
from group_kernels import CUDA
from nvcc import needs_nvcc
from relax_modules import main_module
from tvm import relax

from benchmarks.kernel_resources.claims import Survey
from benchmarks.kernel_resources.machine_code import machine_code
from benchmarks.kernel_resources.table import is_missed, largest, render


def code(registers, shared=0, dynamic=0, spills=0):
    return [registers, shared, dynamic, 0, spills]


def row(registers, shared, *kernels, template="rows"):
    found = {"template": template, "title": "softmax", "graphs": ["a", "b"]}
    return found | {"claimed": [registers, shared], "kernels": list(kernels)}


def test_the_largest_kernel_of_a_group_counts():
    found = largest(row(32, 0, code(40, 64, 8, 4), code(20, 96, spills=4)))
    assert found == {"registers": 40, "shared": 96, "spills": 8, "stack": 0}


@pytest.mark.parametrize(
    ("one", "registers", "shared"),
    [
        (row(32, 1024, code(32, 1024)), False, False),
        (row(24, 8192, code(32, 7200)), False, False),
        (row(23, 8192, code(32, 6400)), True, True),
        (row(41, 0, code(32, 1025)), True, True),
        (row(41, 0, code(32, 1024)), True, False),  # the system's own
        (row(0, 0, code(32, 8192)), False, False),  # nothing is claimed
        (row(0, 64, code(32, 8192)), False, True),
    ],
)
def test_misses(one, registers, shared):
    assert is_missed(one, "registers") is registers
    assert is_missed(one, "shared") is shared


def test_the_page_lists_misses_and_spills():
    good, missed, spilled = (
        row(32, 0, code(32)),
        row(64, 0, code(32), template="contraction"),
        row(0, 0, code(255, spills=16)),
    )
    page = render({"target": "cuda:sm_90a", "groups": [good, missed, spilled]})
    assert "## Claims that miss by more than 25 % (1)" in page
    assert "| contraction | softmax | 64 | 32 | 0 | 0 | 0 | 0 | a and 1 more |  |" in page
    assert "## Spills and stack frames (1)" in page
    assert "| rows | 2 | 2 | 32 to 255 | 1 | 1.00 to 1.00 | 0 | 0 | 1 |" in page
    json.dumps([good, missed])


def negative(emit, x):
    return relax.op.negative(x)


@needs_nvcc
@pytest.mark.cuda_toolchain
def test_groups_are_compiled_once():
    size = int(np.random.default_rng().integers(100, 200))
    x = relax.Var("x", relax.TensorType((size, 33), "float32"))
    survey = Survey(CUDA)
    for name in ("first", "second"):
        survey.add(name, main_module([x], negative))
    (found,) = survey.groups
    assert found.graphs == ["first", "second"]
    ((code,),) = machine_code({"g0k0": found.functions[0]}, CUDA).values()
    assert code.registers >= 8
    assert (code.shared, code.spills) == (0, 0)
