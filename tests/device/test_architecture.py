"""Names of architectures, whose code runs where, and that only the device room reads them."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from group_kernels import group, kernel, tensor
from tvm import relax

import tvm_fusion
from tvm_fusion.device import GPUS, choose_arch, device_of, parse, probe
from tvm_fusion.device.architecture import (
    amd_arch,
    listed_archs,
    number,
    nvidia_arch,
    runs_on,
    virtual_arch,
)
from tvm_fusion.schedule.contraction.gpu.template import GpuContraction

PACKAGE = Path(tvm_fusion.__file__).parent
# Names of GPU architectures, and LLVM's of instruction sets and CPUs.
NAME = re.compile(
    r"\bsm_\d|\bgfx\d|\bcompute_\d|\b(avx|sse|amx-|neon|sve|znver|skylake)|\b(x86|aarch64|a64fx)\b"
)
# LLVM's intrinsics carry the name of the instruction set that they belong to.
INTRINSIC = re.compile(r"llvm\.x86\.[\w.{}]+")
# Of TVM's targets.
ATTRIBUTES = {
    "arch",
    "mcpu",
    "mattr",
    "thread_warp_size",
    "max_num_threads",
    "max_threads_per_block",
    "max_shared_memory_per_block",
    "registers_per_block",
    "vector-width",
}


@pytest.mark.parametrize(
    ("code", "device", "runs"),
    [
        ("sm_80", "sm_80", True),
        ("sm_80", "sm_89", True),
        ("sm_89", "sm_80", False),
        ("sm_80", "sm_90a", False),
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_90", False),
        ("sm_90a", "sm_100", False),
        ("sm_100", "sm_103", True),
        ("sm_10", "sm_100", False),
        ("gfx942", "gfx942", True),
        ("gfx90a", "gfx942", False),
        ("gfx942", "sm_90", False),
    ],
)
def test_code_runs_on_devices_of_its_major_version(code, device, runs):
    assert runs_on(code, device) == runs


@pytest.mark.parametrize(
    ("archs", "device", "chosen"),
    [
        (["sm_80", "sm_90a"], "sm_90a", "sm_90a"),
        (["sm_80", "sm_90a"], "sm_86", "sm_80"),
        (["sm_80", "sm_86"], "sm_89", "sm_86"),
        (["sm_80", "sm_86", "sm_89"], "sm_86", "sm_86"),
        (["sm_90", "sm_90a"], "sm_90a", "sm_90a"),
        (["sm_80", "sm_90a"], "sm_100", None),
        (["gfx90a", "gfx942"], "gfx942", "gfx942"),
        (["gfx90a", "gfx942"], "gfx1100", None),
    ],
)
def test_the_best_code_of_several_is_chosen(archs, device, chosen):
    assert choose_arch(archs, device) == chosen


def test_names_are_made_and_taken_apart():
    assert nvidia_arch(8, 6, GPUS) == "sm_86"
    assert nvidia_arch(9, 0, GPUS) == "sm_90a"
    assert nvidia_arch(9, 0, ()) == "sm_90"
    assert amd_arch(90010) == "gfx90a"
    assert (virtual_arch("sm_90a"), number("sm_90a")) == ("compute_90a", "90a")
    assert listed_archs("sm_80\nsm_90\nsm_120\n", GPUS) == {"sm_80", "sm_90", "sm_90a", "sm_120"}


def product_for(target):
    """The kernel of eight rows times a matrix in half precision."""
    spec = parse(target)
    params = [tensor("x", 8, 512, dtype="float16"), tensor("w", 512, 256, dtype="float16")]
    members = group(params, lambda emit, x, w: relax.op.matmul(x, w), spec)
    return kernel(GpuContraction(), members, spec)[1].script()


@pytest.mark.parametrize(
    ("like", "made_up"), [("sm_80", "sm_123"), ("sm_90a", "sm_130a"), ("gfx942", "gfx999")]
)
def test_a_new_architecture_is_a_row_of_the_table(monkeypatch, like, made_up):
    monkeypatch.setattr(probe, "cuda_devices", lambda: ())
    kind = GPUS[like].kind
    monkeypatch.setitem(GPUS, made_up, replace(GPUS[like], arch=made_up, name="a new board"))
    spec = parse(f"{kind}:{made_up}")
    assert spec.device.name == "a new board"
    assert parse(f"{kind}:{made_up},{like}").archs == (like, made_up)
    target = spec.tvm_target()
    assert parse(target) == spec
    assert target.attrs["arch" if kind == "cuda" else "mcpu"] == made_up
    assert product_for(f"{kind}:{made_up}") == product_for(f"{kind}:{like}")


def test_schedules_follow_capabilities_and_not_names(monkeypatch):
    row = replace(GPUS["sm_80"], arch="sm_85", matrix_instructions=())
    monkeypatch.setitem(GPUS, "sm_85", row)
    assert "mma" in product_for("cuda:sm_80")
    assert "mma" not in product_for("cuda:sm_85")


@pytest.fixture(scope="module")
def other_rooms():
    """The nodes of every file outside of the device room, with the file's path."""
    return [
        (str(path.relative_to(PACKAGE)), list(ast.walk(ast.parse(path.read_text()))))
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "device"
    ]


def literals(nodes):
    """The text constants of a file that are no docstrings, with their lines."""
    statements = [node.value for node in nodes if isinstance(node, ast.Expr)]
    prose = {id(value) for value in statements}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.lineno, INTRINSIC.sub("", node.value)


def compared(nodes):
    """The lines on which something called `arch` or `features` is compared or searched."""
    for node in nodes:
        parts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = [node.func.value]
        if any(isinstance(p, ast.Attribute) and p.attr in ("arch", "features") for p in parts):
            yield node.lineno


def limits_read(nodes):
    """The lines on which limits or names are read from a TVM target's attributes."""
    for node in nodes:
        if isinstance(node, ast.Subscript):
            whole, keys = node.value, [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whole, keys = node.func.value, node.args[:1]
        else:
            continue
        known = any(isinstance(key, ast.Constant) and key.value in ATTRIBUTES for key in keys)
        if known and isinstance(whole, ast.Attribute) and whole.attr == "attrs":
            yield node.lineno


@pytest.mark.slow
def test_no_other_room_knows_names_of_architectures(other_rooms):
    """But the table of instructions, whose names LLVM makes of them, and what asks LLVM."""
    found = [
        f"{path}:{line}: {text!r}"
        for path, nodes in other_rooms
        if not str(path).startswith(("schedule/instructions/", "lower/"))
        for line, text in literals(nodes)
        if NAME.search(text)
    ]
    assert found == []


def test_no_other_room_compares_architectures(other_rooms):
    assert [f"{path}:{line}" for path, nodes in other_rooms for line in compared(nodes)] == []


def test_what_a_target_can_do_is_asked_of_its_device(other_rooms):
    assert [f"{path}:{line}" for path, nodes in other_rooms for line in limits_read(nodes)] == []
    assert device_of(parse("cuda:sm_86").tvm_target()).shared_memory_per_block == 99 << 10


@pytest.mark.parametrize(
    ("finds", "text"),
    [
        (literals, "def f(d): return d.arch == 'sm_80'"),
        (literals, "def f(d): return f'compute_80{d}'"),
        (compared, "def f(d): return d.arch >= x"),
        (compared, "def f(d): return x in d.features"),
        (compared, "def f(d): return d.arch.startswith(x)"),
        (limits_read, "def f(t): return int(t.attrs['max_num_threads'])"),
        (limits_read, "def f(t): return t.attrs.get('arch', 0)"),
    ],
)
def test_the_three_above_find_what_they_look_for(finds, text):
    found = list(finds(list(ast.walk(ast.parse(text)))))
    assert any(NAME.search(one[1]) for one in found) if finds is literals else found
