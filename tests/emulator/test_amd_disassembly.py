"""The text of a code object against the assembly that the compiler wrote of the same kernels."""

import re

import pytest
import tvm
from amd_code import reverse_twice
from emulator.amd.code_object import Assembly, CodeObject
from emulator.amd.disassembler import library
from emulator.amd.text import parse
from tvm.script import tirx as T

from tvm_fusion.deploy.toolchain import rocm
from tvm_fusion.deploy.toolchain.rocm import rocm_toolchain
from tvm_fusion.device import parse as parse_device


@T.prim_func(s_tir=True)
def halves(x: T.Buffer((256, 3), "float16"), y: T.Buffer((256, 3), "float16")):
    """Halves of registers, as RDNA 3 names them."""
    for t in T.thread_binding(256, thread="threadIdx.x"):
        for i in range(3):
            with T.sblock("own"):
                ti, j = T.axis.remap("SS", [t, i])
                y[ti, j] = T.max(x[ti, 2 - j] * x[ti, j], T.float16(0)) + x[(ti + 7) % 9, j]


def normal(inst):
    """Name, and operands with the halves that ``op_sel`` chooses named at the registers."""
    operands = [text.removesuffix(".l") for text in inst.operands]
    chosen = inst.numbers("op_sel", ())
    if inst.name.startswith(("v_pk", "v_fma_mix")) or any(".h" in text for text in operands):
        chosen = ()
    places = [*range(1, len(chosen)), 0]  # the destination's bit is the last
    for place, upper in zip(places, chosen, strict=False):
        if upper:
            operands[place] = re.sub(r"(v\d+)", r"\1.h", operands[place])
    if inst.name.startswith("s_load"):  # no offset is written as 0 or as no register
        operands[-1] = operands[-1].replace("null", "0x0")
    return inst.name, [] if "branch" in inst.name else operands


@pytest.mark.rocm_toolchain
@pytest.mark.skipif(rocm.find_lld() is None, reason="no lld 19 or newer was found")
@pytest.mark.skipif(library() is None, reason="no LLVM library was found, which lld-19 depends on")
@pytest.mark.every_case
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("func", [reverse_twice, halves], ids=["reverse_twice", "halves"])
def test_the_text_is_the_compilers(func, arch, monkeypatch):
    linked = []

    def link(*given):
        linked.append(original(*given))
        return linked[-1]

    original = rocm.link_code_object
    monkeypatch.setattr(rocm, "link_code_object", link)
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    with rocm_toolchain([arch]):
        built = tvm.compile(mod, target=parse_device(f"rocm:{arch}").tvm_target())
    wanted, _ = parse(Assembly(built.mod.imports[0].inspect_source("asm")).text)
    got, _ = parse(CodeObject(linked[0]).text)
    # Functions begin at multiples of some bytes.
    wanted, got = ([i for i in found if i.name != "s_nop"] for found in (wanted, got))
    assert 20 < len(got) <= len(wanted)
    for ours, theirs in zip(got, wanted, strict=False):
        assert normal(ours) == normal(theirs)
