"""AMD kernels as LLVM IR and assembly, made without a linker or AMD's device library, and run."""

import re
from contextlib import contextmanager

import numpy as np
import tvm
import tvm.support.rocm
import tvm_ffi
from emulator.amd import run
from tvm import tirx
from tvm.script import tirx as T

from tvm_fusion.device import parse

_CALLBACKS = {
    "tvm_callback_rocm_link": lambda objects: bytearray(objects),
    "tvm_callback_rocm_bitcode_path": lambda *_: [],
}
_KINDS = ("blockIdx", "threadIdx")


@T.prim_func(s_tir=True)
def reverse_twice(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    for _ in T.thread_binding(1, thread="blockIdx.x"):
        for t in T.thread_binding(256, thread="threadIdx.x"):
            with T.sblock("both"):
                T.reads(x[0:256])
                T.writes(y[0:256])
                first = T.sblock_alloc_buffer((256,), scope="shared")
                second = T.sblock_alloc_buffer((256,), scope="shared")
                third = T.sblock_alloc_buffer((256,), scope="shared")
                first[t] = x[t]
                second[t] = first[255 - t] + T.float32(1)
                third[t] = second[255 - t] * T.float32(3)
                y[t] = third[(t + 3) % 256]


@contextmanager
def without_linker():
    """Let TVM build AMD modules that hold unlinked objects: text to read, nothing to run."""
    before = {name: tvm_ffi.get_global_func(name) for name in _CALLBACKS}
    for name, callback in _CALLBACKS.items():
        tvm_ffi.register_global_func(name, callback, override=True)
    try:
        yield
    finally:
        for name, callback in before.items():
            tvm_ffi.register_global_func(name, callback, override=True)


def amd_module(functions, arch, pipeline="tvm_fusion"):
    """The AMD module of some PrimFuncs; its source is LLVM IR as "hip", assembly as "asm"."""
    target = parse(f"rocm:{arch}").tvm_target()
    mod = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    )
    with without_linker(), target:
        built = tvm.tirx.build(mod, target, pipeline=pipeline)
    (module,) = [m for m in built.imports if m.kind == "hip"]
    return module


def run_on_amd(func, arch, *arrays, **options):
    """Compile a PrimFunc that is one kernel, and interpret its machine code.

    Parameters
    ----------
    func : tirx.PrimFunc
        Scheduled: its loops are bound to blocks and threads.
    arch : str
        ``gfx942``.
    *arrays : numpy.ndarray
        The function's parameters, outputs among them; scalars are numpy's.
    **options
        Of :func:`emulator.amd.run`; ``blocks`` of a symbolic grid, and ``size``
        of all symbols.

    Returns
    -------
    Launch
        What the interpreter counted.
    """
    names = {p: tvm.ir.Var(f"argument{i}", p.ty) for i, p in enumerate(func.params)}
    body = tvm_ffi.structural_map(func.body, (tvm.ir.Var, lambda v: names.get(v, v)), order="post")
    func = tirx.PrimFunc(list(names.values()), body, func.ret_type, attrs=func.attrs)
    assembly = amd_module({"main": func}, arch).inspect_source("asm")
    found = re.search(r"\.args:(.*?)\.name: +main_kernel", assembly, re.DOTALL)[1]
    blocks, size = options.pop("blocks", None), options.pop("size", 0)
    given = {name.name: value for name, value in zip(names.values(), arrays, strict=True)}
    order = re.findall(r"\.name: +'?([\w.]+)", found)
    values = [given.get(name, np.int64(size)) for name in order]
    extents = dict.fromkeys((f"{kind}.{axis}" for kind in _KINDS for axis in "xyz"), 1)
    bound = r"(?:thread_binding\((\d+), thread=\"(.*?)\"|launch_thread\(\"(.*?)\", (\d+)\))"
    script = re.sub(r"T\.int64\((\d+)\)", r"\1", func.script())
    for extent, axis, launched, count in re.findall(bound, script):
        extents[axis or launched] = int(extent or count)
    extents["blockIdx.x"] = blocks or extents["blockIdx.x"]
    grid, block = ([extents[f"{kind}.{axis}"] for axis in "xyz"] for kind in _KINDS)
    return run(assembly, "main_kernel", grid, block, values, **options)
