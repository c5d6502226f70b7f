"""The guarded rules for a PrimFunc of any form, for each kind of target."""

from collections.abc import Sequence

from tvm import tirx
from tvm.target import Target

from ..stage.guard import Check, Rule


def rules(target: Target) -> tuple[Sequence[Rule], Check]:
    """List the rules to try, in order, and the check that their results must pass."""
    if "gpu" in target.keys:
        from ..gpu.dlight import check_gpu, gpu_rules

        return gpu_rules(), check_gpu
    from ..cpu.schedule import schedule_cpu

    return [Rule("cpu.generic", schedule_cpu)], _anything_runs


def _anything_runs(func: tirx.PrimFunc, target: Target) -> str | None:
    """Accept everything: plain loops run on a CPU."""
    return None
