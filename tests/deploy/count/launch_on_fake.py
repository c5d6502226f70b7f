"""Run every graph on the stand-in for CUDA and print its true launches as JSON.

Usage: ``python launch_on_fake.py FOLDER`` with the compiled stand-ins in FOLDER. A process of its
own, because the stand-ins must be loaded before TVM.
"""

import json
import sys
from pathlib import Path

from fake_cuda.build import load

fake = load(Path(sys.argv[1]))

import counted_graphs as graphs  # noqa: E402
import tvm  # noqa: E402
import tvm.support.nvcc  # noqa: E402
import tvm_ffi  # noqa: E402
from tvm import relax  # noqa: E402


@tvm_ffi.register_global_func("tvm_callback_cuda_compile", override=True)
def _no_machine_code(code: str) -> bytearray:
    return bytearray(b"counted, never run\0")


def inputs(func: relax.Function, dims: dict[str, int], device: tvm.runtime.Device) -> list:
    arrays = []
    for param in func.params:
        shape = [dims[e.name] if hasattr(e, "name") else int(e) for e in param.ty.shape.values]
        arrays.append(tvm.runtime.empty(shape, str(param.ty.dtype), device))
    return arrays


def launches(entry: graphs.Graph, variant: str) -> dict[str, dict[str, int]]:
    target, device, found = graphs.cuda(), tvm.cuda(0), {}
    lowered = {**graphs.VARIANTS, "ours": graphs.ours}[variant](entry, target)
    # TVM's own pipeline would fuse and schedule again; a lowered module is compiled as it is.
    pipeline = relax.get_pipeline("default_build") if variant == "unfused" else None
    tir_pipeline = "tvm_fusion" if variant == "ours" else "default"
    executable = tvm.compile(lowered, target, relax_pipeline=pipeline, tir_pipeline=tir_pipeline)
    machine = relax.VirtualMachine(executable, [device, tvm.cpu()])
    mod = entry.build()
    for name in entry.functions:
        arguments = inputs(mod[name], entry.dims, device)
        machine[name](*arguments)  # the first call captures CUDA graphs
        fake.fake_reset()
        machine[name](*arguments)
        found[name] = {
            "kernels": fake.fake_kernels(),
            "copies": fake.fake_copies(),
            "graph_launches": fake.fake_graph_launches(),
            "host_launches": fake.fake_host_launches(),
        }
    return found


if __name__ == "__main__":
    result = {
        variant: {name: launches(entry, variant) for name, entry in graphs.GRAPHS.items()}
        for variant in graphs.VARIANTS
    }
    result["ours"] = {
        name: launches(entry, "ours") for name, entry in graphs.GRAPHS.items() if entry.cuda_graph
    }
    print(json.dumps(result))
