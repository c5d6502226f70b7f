"""The counts of a kernel: a few blocks of its launch in the interpreter, and its code object."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401 - numpy learns bfloat16 and eight-bit floats
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tests.emulator.amd import Launch, Span, run, whole
from tvm_fusion.core.contract.template import Emission, Kernel
from tvm_fusion.deploy.build.amd_registers import assemblies
from tvm_fusion.deploy.toolchain.rocm_code import KernelCode, kernels

_AXES = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]
_MOST_BLOCKS = 3  # of a launch: the first, one in the middle, the last


@dataclass(frozen=True)
class Counts:
    """One kernel."""

    # Of the launch; of a block.
    blocks: int
    waves: int
    code: KernelCode  # registers, LDS, scratch memory
    span: Span  # what a wave does, on average over the blocks that ran
    bytes: int  # of the kernel's operands and results


def counts_of(emission: Emission, target: Target) -> Iterator[Counts]:
    """Compile the kernels of an emission, under AMD's toolchain, and interpret some blocks.

    Operands are drawn; indices are 0.
    """
    arch = str(target.attrs["mcpu"])
    for launch, blocks, chosen, code, size in launches_of(emission, target):
        yield Counts(blocks, launch.waves // chosen, code, whole(launch, arch), size)


def launches_of(
    emission: Emission, target: Target
) -> Iterator[tuple[Launch, int, int, KernelCode, int]]:
    """Run some blocks of each kernel as :func:`counts_of` does.

    Yields
    ------
    Launch
        What the interpreter counted.
    int
        Blocks of the launch.
    int
        Of these, how many ran.
    KernelCode
        Registers, LDS, scratch memory.
    int
        Bytes of operands and results.
    """
    named = [_with_names(kernel) for kernel in emission.kernels]
    made = Emission(tuple(named), emission.workspaces)
    rng = np.random.default_rng(0)
    for text in assemblies(made, target):
        for code in kernels(text):
            number = int(re.match(r"kernel(\d+)", code.name)[1])  # type: ignore[index]
            func = named[number].func
            arrays = [_drawn(param.ty, rng) for param in func.params]
            grid, block = _extents(func)
            count = int(np.prod(grid))
            chosen = sorted({0, count // 2, count - 1})[:_MOST_BLOCKS]
            given = {f"argument{i}": array for i, array in enumerate(arrays)}
            arguments = [given[name] for name in _order(text, code.name)]
            launch = run(text, code.name, grid, block, arguments, clocks=True, blocks=chosen)
            yield launch, count, len(chosen), code, sum(array.nbytes for array in arrays)


def _order(assembly: str, name: str) -> list[str]:
    """Return the names of a kernel's arguments, in the order of its code object."""
    metadata = assembly[assembly.index("amdhsa.kernels:") :]
    for text in re.split(r"^  - ", metadata, flags=re.MULTILINE)[1:]:
        if re.search(rf"^ {{4}}\.name: +'?{re.escape(name)}'?$", text, re.MULTILINE):
            return re.findall(r"^ +(?:- )?\.name: +'?(argument\d+)", text, re.MULTILINE)
    raise KeyError(name)


def _with_names(kernel: Kernel) -> Kernel:
    """Name the parameters by their numbers, so that arguments are known again."""
    func = kernel.func
    names = {p: tvm.ir.Var(f"argument{i}", p.ty) for i, p in enumerate(func.params)}
    body = tvm_ffi.structural_map(func.body, (tvm.ir.Var, lambda v: names.get(v, v)), order="post")
    func = tirx.PrimFunc(list(names.values()), body, func.ret_type, attrs=func.attrs)
    return Kernel(func, kernel.reads, kernel.writes)


def _drawn(type_: Any, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = [int(d) for d in type_.shape], np.dtype(str(type_.dtype))
    if dtype.kind in "iub":
        return np.zeros(shape, dtype)
    return rng.random(shape, "float32").astype(dtype)


def _extents(func: tirx.PrimFunc) -> tuple[Sequence[int], Sequence[int]]:
    """Return the grid and the block that a scheduled function is launched with."""
    found = dict.fromkeys(_AXES, 1)
    bound = r"(?:thread_binding\((\d+), thread=\"(.*?)\"|launch_thread\(\"(.*?)\", (\d+)\))"
    script = re.sub(r"T\.int64\((\d+)\)", r"\1", func.script())
    for extent, axis, launched, count in re.findall(bound, script):
        found[axis or launched] = int(extent or count)
    sizes = list(found.values())
    return sizes[:3], sizes[3:]
