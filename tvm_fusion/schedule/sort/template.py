"""The template for sorts by ranks."""

from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from ..._tvm.ir.buffer import declare
from ...core.contract.template import Claim, Emission, Refusal, Template
from ...core.tir.loops import block
from ...core.untouched import SCHEDULED
from ...device import Device
from ...ecg.legalization.operators.rank_sort import SORTS, fits, order_of
from ...program.group import Group
from .config import RankSortConfig
from .cpu import CpuRankSortConfig, sort_cpu
from .gpu import sort_gpu
from .problem import SortProblem


@dataclass(frozen=True, eq=False)
class SortDetails:
    """What a claim remembers until its kernel is made."""

    problem: SortProblem
    config: RankSortConfig | CpuRankSortConfig  # of a GPU, or of a CPU


class RankSort(Template):
    """A sort, its places, or the first k of both, of integers."""

    name = "rank_sort"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one operator of rows that are short enough to compare all keys."""
        op = group.members[0]
        if len(group) != 1 or op.record is None or op.record.name not in SORTS:
            return Refusal("not_mine", "It is not a single sort.")
        (given,) = group.inputs
        rank = len(given.shape)
        axis, falls, outputs = order_of(op.record.name, op.record.attrs, rank)
        is_short = fits(op.record.name, given.shape, axis, self._is_gpu)
        if not given.dtype.startswith(("int", "uint")) or not is_short:
            return Refusal("not_mine", f"{op.title} has rows for a merge sort.")
        kinds = dict(zip(op.results, outputs, strict=True))
        # Results that nothing reads are no parameters.
        found = [(declare(r.shape, r.dtype, "y"), kinds[r] == "values") for r in group.outputs]
        problem = SortProblem(declare(given.shape, given.dtype, "x"), tuple(found), axis, falls)
        config: RankSortConfig | CpuRankSortConfig
        if self._is_gpu:
            config = RankSortConfig.of(problem.rows, problem.keys, given.dtype, device)
        else:
            config = CpuRankSortConfig.of(problem, device)
        on_gpu = config if isinstance(config, RankSortConfig) else None
        return Claim(
            self,
            group,
            launches=1,
            bytes=group.bytes,
            flops=problem.rows * problem.keys**2,
            parallelism=problem.rows * problem.keys,
            shared_bytes=on_gpu.shared_bytes if on_gpu else 0,
            registers=on_gpu.registers if on_gpu else 0,
            details=SortDetails(problem, config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        details = claim.details_as(SortDetails)
        problem, config = details.problem, details.config
        params = [problem.source, *(target for target, _ in problem.targets)]
        body = (
            sort_gpu(problem, config)
            if isinstance(config, RankSortConfig)
            else sort_cpu(problem, config)
        )
        func = tirx.PrimFunc(params, block("root", body)).with_attrs(
            {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
        )
        return Emission.one(func, claim.group)
