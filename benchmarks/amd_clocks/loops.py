"""Inner loops of GEMM and attention: what matrix cores get of the clocks that a wave issues."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax

from tests.emulator.amd import Launch, Span, loops, products
from tvm_fusion.deploy.toolchain import toolchain
from tvm_fusion.device import parse
from tvm_fusion.report.planned import plan_model

from .count import Counts, launches_of
from .model import SIMDS, resident

_GEMMS = ((4096, 4096, 4096), (1024, 1024, 1024), (512, 4096, 4096))
_HEADS = (64, 128)
_LOAD = re.compile(r"(global|flat|buffer)_load")
_WAIT = re.compile(r"s_waitcnt.*\bvmcnt\((\d+)\)")


def rows(arch: str) -> Iterator[list[Any]]:
    """Compile the kernels of an architecture and count their inner loops.

    Yields
    ------
    list
        As :data:`.record.LOOPS`.
    """
    for m, n, k in _GEMMS:
        yield _row(f"GEMM {m}x{n}x{k}", _gemm(m, n, k), arch)
    for d in _HEADS:
        yield _row(f"attention, 32 heads of {d}, 2,048 keys", _attention(2048, 32, d), arch)


def _row(name: str, mod: tvm.IRModule, arch: str) -> list[Any]:
    spec = parse(f"rocm:{arch}")
    with toolchain(spec), spec.tvm_target() as target:
        plans = plan_model(mod, f"rocm:{arch}").plans.values()
        (claim,) = (claim for plan in plans for claim in plan.claims)
        emission = claim.template.emit(claim, target)
        forms = [f.kernel for f in claim.template.forms(claim, spec.device) if f.is_chosen]
        launch, blocks, chosen, code, size = next(launches_of(emission, target))
    found = loops(launch, arch) or [products(launch, arch)]  # few steps are not a loop
    loop = max(found, key=lambda one: one.turns * one.clocks["matrix"])
    steps = _steps(launch, loop)
    barriers = sum("barrier" in text for text in steps)
    lanes = spec.device.warp_size or 64
    counts = Counts(blocks, launch.waves // chosen, code, loop, size)
    # Waves of a compute unit multiply on as many SIMDs, and share its LDS.
    at_once = min(resident(counts, spec.device) * counts.waves, SIMDS[lanes])
    lds = at_once * loop.lds_clocks / loop.clocks["matrix"]
    return [
        *(name, *forms, code.registers, code.spilled, f"{loop.matrix_share:.0%}"),
        *(round(loop.instructions["matrix"] / max(barriers, 1)), _ahead(steps), f"{lds:.0%}"),
        round(loop.narrow_loads),
    ]


def _steps(launch: Launch, loop: Span) -> list[str]:
    return [s.inst.text for s in launch.steps if loop.first <= s.inst.address <= loop.last]


def _ahead(steps: Sequence[str]) -> int:
    """Count the products from a load to the wait for it, the fewest of all waits."""
    products, found = 0, []
    pending: list[int] = []  # of each load, how many products came before
    for text in (*steps, *steps):
        if text.startswith(("v_mfma", "v_wmma")):
            products += 1
        elif _LOAD.match(text):
            pending.append(products)
        elif (wait := _WAIT.match(text)) and len(pending) > int(wait[1]):
            found.append(products - pending[len(pending) - int(wait[1]) - 1])
            pending = pending[len(pending) - int(wait[1]) :]
    return min(found, default=0)


def _gemm(m: int, n: int, k: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((m, k), "float16"))
    w = relax.Var("w", relax.TensorType((n, k), "float16"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(w))
            out = builder.emit_output(relax.op.matmul(x, turned))
        builder.emit_func_output(out)
    return builder.get()


def _attention(keys: int, heads: int, d: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    shape = (1, heads, keys, d)
    q, k, v = (relax.Var(x, relax.TensorType(shape, "float16")) for x in "qkv")
    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            turned = builder.emit(relax.op.permute_dims(k, (0, 1, 3, 2)))
            scores = builder.emit(relax.op.matmul(q, turned))
            scaled = builder.emit(relax.op.multiply(scores, relax.const(d**-0.5, "float16")))
            weights = builder.emit(relax.op.nn.softmax(scaled))
            out = builder.emit_output(relax.op.matmul(weights, v))
        builder.emit_func_output(out)
    return builder.get()
