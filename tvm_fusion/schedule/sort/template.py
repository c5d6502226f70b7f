"""The template for sorts by ranks."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from ..._tvm.buffer import declare
from ...core.loops import block
from ...core.template import Claim, Emission, Refusal, Template
from ...core.untouched import SCHEDULED
from ...device import Device
from ...ecg.legalizations.rank_sort import SORTS, fits, order_of
from ...program.group import Group
from .config import RankSortConfig
from .gpu import sort_gpu
from .problem import SortProblem


class RankSort(Template):
    """A sort, its places, or the first k of both, of integers on a GPU."""

    name = "rank_sort"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one operator of rows that are short enough to compare all keys."""
        op = group.members[0]
        if len(group) != 1 or op.record is None or op.record.name not in SORTS:
            return Refusal("not_mine", "It is not a single sort.")
        (given,) = group.inputs
        rank = len(given.shape)
        axis, falls, outputs = order_of(op.record.name, op.record.attrs, rank)
        if not given.dtype.startswith(("int", "uint")) or not fits(given.shape, axis):
            return Refusal("not_mine", f"{op.title} is of rows that are merged.")
        kinds = dict(zip(op.results, outputs, strict=True))
        # Results that nothing reads are no parameters.
        found = [(declare(r.shape, r.dtype, "y"), kinds[r] == "values") for r in group.outputs]
        problem = SortProblem(declare(given.shape, given.dtype, "x"), tuple(found), axis, falls)
        config = RankSortConfig.of(problem.rows, problem.keys, given.dtype, device)
        return Claim(
            self,
            group,
            launches=1,
            bytes=group.bytes,
            flops=problem.rows * problem.keys**2,
            parallelism=problem.rows * problem.keys,
            shared_bytes=config.shared_bytes,
            registers=config.registers,
            details={"problem": problem, "config": config},
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        problem, config = claim.details["problem"], claim.details["config"]
        params = [problem.source, *(target for target, _ in problem.targets)]
        func = tirx.PrimFunc(params, block("root", sort_gpu(problem, config))).with_attrs(
            {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
        )
        return Emission.one(func, claim.group)
