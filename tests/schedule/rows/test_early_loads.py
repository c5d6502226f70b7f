"""What rows share is loaded before the first pass, and constants before the kernel before ends."""

import numpy as np
import pytest
from group_kernels import CUDA, arrays, cuda_kernel, emitted, run, tensor
from relax_modules import main_module
from tvm import relax

from tvm_fusion import transform
from tvm_fusion.device import parse
from tvm_fusion.ecg.graph import Graph
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.rows.template import Rows

op = relax.op
COLUMNS = 776  # vectors of eight: one more than whole warps have
WAIT = "griddepcontrol_wait()"


def norm(emit, x, scale, shift):
    return [emit(op.nn.layer_norm(x, scale, shift, axes=[-1], epsilon=1e-5))]


def inputs(rows, columns=COLUMNS):
    return [
        tensor("x", rows, columns, dtype="float16"),
        *(tensor(name, columns, dtype="float16") for name in ("scale", "shift")),
    ]


def exact(x, scale, shift):
    x, scale, shift = (a.astype("float64") for a in (x, scale, shift))
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def with_constants(rows):
    """The norm's scale is a constant, its shift an input."""
    x, scale, shift = inputs(rows)
    known = arrays([scale])["scale"]

    def body(emit, x, shift):
        return norm(emit, x, relax.const(known), shift)

    with CUDA.tvm_target():
        func = (mod := transform.Legalize()(main_module([x, shift], body)))["main"]
    members = Group(Graph(mod, func, func.body.blocks[0]).operators)
    claim = Rows().claim(members, CUDA.device)
    return members, Rows().emit(claim, CUDA.tvm_target()).kernels[0].func, known


def test_constants_are_loaded_before_the_wait():
    members, func, known = with_constants(3)
    text = cuda_kernel(func)
    wait, barrier = text.index(WAIT), text.index("__syncthreads")
    first = {name: text.index(f"= *(uint4*)({name}") for name in ("x_ptr", "shift_ptr")}
    (constant,) = [
        line
        for line in text.splitlines()
        if "early_ptr" in line and "(uint4*)" in line and "shift" not in line
    ]
    assert text.index(constant) < wait < min(first.values())
    assert first["shift_ptr"] < barrier
    given = arrays([p for p in inputs(3) if p.name != "scale"])
    (found,) = run(func, members, given, CUDA, 1)
    wanted = exact(given["x"], known, given["shift"])
    assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(wanted).max()


@pytest.mark.parametrize("offset", [0, 100])
def test_rows_with_large_means_are_right(offset):
    """To one unit of float16 in the last place of the largest, whatever the mean."""
    made = emitted(Rows(), inputs(7), norm, CUDA)
    given = arrays(inputs(7))
    given["x"] = (given["x"] + np.float16(offset)).astype("float16")
    (found,) = run(made.func, made.members, given, CUDA, 1)
    wanted = exact(**given)
    assert np.abs(found - wanted).max() <= 2.0**-10 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (1 << 16, COLUMNS),  # blocks one after the other, of which others compute meanwhile
        (3, 1 << 15),  # more than registers have room for
    ],
)
def test_others_load_where_they_compute(rows, columns):
    text = cuda_kernel(emitted(Rows(), inputs(rows, columns), norm, CUDA).func)
    assert "_early" not in text


def test_devices_without_dependent_launch_do_not_wait():
    spec = parse("cuda:sm_80")
    made = emitted(Rows(), inputs(3), norm, spec)
    assert WAIT not in str(made.func.script())
    assert "griddepcontrol" not in str(made.func.script())
