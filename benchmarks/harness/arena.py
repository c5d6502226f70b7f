"""Memory of intermediates at its peak: ours as planned, and ONNX Runtime's least arena.

``python -m benchmarks.harness.arena`` writes ``benchmarks/cpu/memory.json``. ONNX Runtime tells
nothing of its arena, so a session with its weights elsewhere runs under smaller and smaller limits.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

import onnxruntime
import tvm
from tvm import ir, relax, s_tir, tirx
from tvm.runtime import DataType

from benchmarks import records, zoo
from benchmarks.fusion.counting import lowered
from benchmarks.fusion.figures import CPU
from tvm_fusion.core.tir.loops import find

MEMORY = Path(__file__).parents[1] / "cpu" / "memory.json"
MODELS = ("resnet50",)
THREADS = 2
MOST, STEP = 1 << 28, 1 << 16  # bytes: the first limit, and how exactly the least one is found


def planned_bytes(mod: tvm.IRModule) -> int:
    """Add up the storage of a lowered module, and the buffers of all threads in one kernel."""
    storages: list[int] = []
    buffers = [0]

    def add_storage(expr: ir.Expr) -> None:
        if isinstance(expr, relax.Call) and expr.op == _STORAGE:
            (size,) = expr.args[0].values
            storages.append(int(size))

    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, add_storage)
        elif isinstance(func, tirx.PrimFunc):
            buffers.append(_buffers(func))
    return sum(storages) + THREADS * max(buffers)


_STORAGE = ir.Op.get("relax.vm.alloc_storage")


def _buffers(func: tirx.PrimFunc) -> int:
    found = [b.ty for block in find(func.body, s_tir.SBlock) for b in block.alloc_buffers]
    return sum(math.prod(map(int, t.shape)) * DataType(t.dtype).itemsize for t in found)


def least_arena(name: str) -> int:
    """Search the least arena in which ONNX Runtime runs a model of the zoo, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(zoo.load(name).SerializeToString())

        def fits(limit: int) -> bool:
            command = [sys.executable, "-m", __spec__.name, name, str(path), str(limit)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode and "Available memory of" not in done.stderr:
                raise RuntimeError(done.stderr)
            return not done.returncode

        low, high = 0, MOST
        if not fits(high):
            raise RuntimeError(f"{name} does not run in {high} bytes")
        while high - low > STEP:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def run_limited(name: str, path: str, limit: int) -> None:
    """Run a model in an arena of so many bytes; what does not fit raises an error."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    as_requested = 1  # not the next power of two
    arena = onnxruntime.OrtArenaCfg(limit, as_requested, -1, -1)
    onnxruntime.create_and_register_allocator(memory, arena)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(3):  # later runs follow the pattern of the first
        session.run(None, zoo.inputs(name))


def main(arguments: list[str]) -> None:
    """Measure the models; or run one in an arena, as :func:`least_arena` asks."""
    if arguments:
        name, path, limit = arguments
        run_limited(name, path, int(limit))
        return
    models = {
        name: {
            "ours": planned_bytes(lowered(zoo.load(name), CPU)),
            "onnxruntime": least_arena(name),
        }
        for name in MODELS
    }
    record = {"onnxruntime": onnxruntime.__version__, "models": models}
    MEMORY.write_text(records.text(record))


if __name__ == "__main__":
    main(sys.argv[1:])
