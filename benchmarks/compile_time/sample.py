"""One compilation in this process, sampled: which stage the processor works for.

Run as ``python -m benchmarks.compile_time.sample MODEL TARGET``; MODEL is an ONNX file, the
number of layers of GPT-2's decoder, a model of equal layers with their number, such as
``encoder_8``, or a model of ``benchmarks.gpu_models``. Prints JSON.

Every few milliseconds another thread looks at all stacks. What a thread has used of a processor
since the last look goes to the stage that its stack is in.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

INTERVAL = 0.005  # seconds

# The first stage of which a function is in the stack, by file and name.
STAGES = (
    ("imports", "importlib._bootstrap>", "_find_and_load"),
    ("frontend", "frontend/__init__.py", "import_model"),
    ("recomposition", "recompose/recompose.py", "transform_module"),
    ("search for equal forms", "rewrite/search/search.py", "transform_module"),
    ("other rewriting", "rewrite/simplify.py", "transform_module"),
    ("legalization", "ecg/legalization/legalize.py", "transform_module"),
    ("fusion planning", "fusion/fuse.py", "transform_module"),
    ("layouts", "layout/plan_layout.py", "transform_module"),
    ("kernels", "schedule/kernels.py", "transform_module"),
    ("virtual machine's code", "deploy/build/lower.py", "transform_module"),
    ("counting kernels", "deploy/build/build.py", "_count"),
    ("export", "deploy/build/artifact.py", "export"),
)
REST = "everything else"
THREADS = (
    ("LLVM: machine code", "tvm_ffi/module.py", "write_to_file"),
    ("LLVM or CUDA source: generated, optimised", "tirx/build.py", "codegen_build"),
    ("lowering of kernels", "deploy/build/codegen.py", "_compile"),
)
_LAYERED = ("encoder", "decode_step", "residual")  # of layers.py, which imports TVM
CLAIM = ("claims", "fusion/claims.py", "_ask")

Rules = tuple[tuple[str, str, str], ...]


class Sampler:
    """Adds up processor time by stage.

    Attributes
    ----------
    main, others : Counter
        Seconds of the thread that makes it by stage; of the code generator's by what they do.
    claims : float
        Seconds of the main thread in claims, in whatever stage.
    """

    def __init__(self) -> None:
        self.main: Counter[str] = Counter()
        self.others: Counter[str] = Counter()
        self.claims = 0.0
        self._compiling = threading.get_ident()
        self._used: dict[int, float] = {self._compiling: time.thread_time()}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        mine = threading.get_ident()
        while not self._done.wait(INTERVAL):
            for thread, frame in sys._current_frames().items():
                if thread != mine:
                    self._sample(thread, frame)

    def _sample(self, thread: int, frame: FrameType) -> None:
        """Charge the time that a thread has used since the last sample to what it does now."""
        now = time.clock_gettime(time.pthread_getcpuclockid(thread))
        used = now - self._used.get(thread, 0.0)
        self._used[thread] = now
        if thread != self._compiling:
            self.others[_find(frame, THREADS, REST)] += used
            return
        self.main[_find(frame, STAGES, REST)] += used
        self.claims += used if _find(frame, (CLAIM,), "") else 0.0


def _find(frame: FrameType | None, rules: Rules, otherwise: str) -> str:
    where = set()
    while frame is not None:
        where.add((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    for stage, file, function in rules:
        if any(name == function and path.endswith(file) for path, name in where):
            return stage
    return otherwise


def _given(model: str) -> tuple[Any, int]:
    """Return what is compiled, and the bytes of its weights.

    Programs that PyTorch exports are made beforehand: exporting one is not part of its compilation.
    """
    if model.isdigit() or _layered(model):
        return model, 0
    if model.endswith(".onnx"):
        return model, Path(model).stat().st_size
    from benchmarks.gpu_models.models import MODELS

    exported, module = MODELS[model].exported()
    return exported, sum(p.numel() * p.element_size() for p in module.parameters())


def _layered(model: str) -> tuple[str, int] | None:
    """Read the name of a model of equal layers, and their number."""
    name, _, count = model.rpartition("_")
    return (name, int(count)) if name in _LAYERED and count.isdigit() else None


def _layers(name: str, count: int) -> tuple[Any, dict[str, Any]]:
    """Build a model of equal layers; what a decode step keeps lies where it is."""
    from benchmarks.compile_time import layers

    if name != "decode_step":
        return layers.MODELS[name](count), {}
    mod = layers.decode_step(count, as_inputs=True)
    weights = [p.name for p in mod["main"].params if p.name.startswith("w")]
    return mod, {"in_place": layers.caches(count), "static_inputs": weights}


def _processor_seconds() -> tuple[float, float]:
    """Seconds that this process and its children that ended have used of processors."""
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime


def measure(model: str, target: str) -> dict[str, Any]:
    """Compile as the command line does; returns seconds by stage, and counts of claims."""
    given, weights = _given(model)
    used = _processor_seconds()
    start = time.perf_counter()
    with Sampler() as sampler, tempfile.TemporaryDirectory() as folder:
        from tvm_fusion.cli import prepare_process

        prepare_process()
        import tvm_fusion
        from tvm_fusion._tvm.ffi_speed import speed_up_ffi
        from tvm_fusion.fusion.claims import remembering

        speed_up_ffi()
        with remembering() as books:
            if model.isdigit():
                from benchmarks.compile_time.decoder import decoder

                given = decoder(int(model))
            options: dict[str, Any] = {}
            if layered := _layered(model):
                given, options = _layers(*layered)
            tvm_fusion.compile(given, target, **options).export(Path(folder, "artifact"))
    seconds = time.perf_counter() - start
    own, children = (now - before for now, before in zip(_processor_seconds(), used, strict=True))
    return {
        "wall": seconds,
        "cpu": own,
        "children": children,
        "weights_mb": weights / 1e6,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "main": dict(sampler.main),
        "threads": dict(sampler.others),
        "claims": {
            "seconds": sampler.claims,
            "questions": sum(book.questions for book in books.values()),
            "asked": sum(book.asked for book in books.values()),
        },
    }


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:])))
