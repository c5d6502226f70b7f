"""Figures of one model under each way of rewriting, by the planner; nothing is built."""

import time
from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import Sequential

from tvm_fusion import transform
from tvm_fusion.config import FusionConfig
from tvm_fusion.core.flags import SEARCHES, Search
from tvm_fusion.core.untouched import is_rewritable
from tvm_fusion.device import parse
from tvm_fusion.fusion.fuse import plan_module
from tvm_fusion.pipeline import stage

WAYS: tuple[Search, ...] = tuple(sorted(SEARCHES, key=("none", "greedy", "search").index))


def figures(mod: tvm.IRModule, way: Search, target: str = "cpu") -> dict[str, Any]:
    """Rewrite a module and plan it.

    Parameters
    ----------
    mod
        As the frontend leaves it.
    way : {"none", "greedy", "search"}
        How it is rewritten.
    target
        As of :func:`tvm_fusion.device.parse`.

    Returns
    -------
    dict
        ``operators`` of Relax after rewriting; ``flops``, ``bytes`` and ``kernels`` of the plan's
        claims; ``seconds`` of one core that the rewriting stage took.
    """
    config = FusionConfig(rewrite=way)
    tvm_target = parse(target).tvm_target()
    with tvm_target:
        mod = Sequential([transform.NormalizeImport()])(mod)
        seconds, rewritten = timed(mod, config)
        legal = Sequential([transform.Legalize()])(rewritten)
        plans = plan_module(legal, tvm_target).values()
    claims = [claim for plan in plans for claim in plan.claims]
    return {
        "operators": operators(rewritten),
        "flops": sum(claim.flops for claim in claims),
        "bytes": sum(claim.bytes for claim in claims),
        "kernels": sum(claim.launches for claim in claims),
        "seconds": seconds,
    }


def timed(mod: tvm.IRModule, config: FusionConfig) -> tuple[float, tvm.IRModule]:
    """Run the rewriting stage under the current target; give its processor seconds, too."""
    rewrite = stage("rewrite", config)
    start = time.process_time()
    rewritten = rewrite(mod)
    return time.process_time() - start, rewritten


def operators(mod: tvm.IRModule) -> int:
    """Count calls of operators in the functions that are ours."""
    found = 0

    def visit(expr: Any) -> None:
        nonlocal found
        found += isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op)

    for func in mod.functions.values():
        if is_rewritable(func):
            relax.analysis.post_order_visit(func.body, visit)
    return found
