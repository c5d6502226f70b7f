"""The template for prefix sums."""

from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from ..._tvm.ir.buffer import declare
from ...core.contract.template import Claim, Emission, Refusal, Template
from ...core.tir.loops import block, product
from ...core.untouched import SCHEDULED, is_scheduled
from ...device import Device, device_of
from ...ecg.legalization.operators.scan import NAME, is_last
from ...ecg.work import at
from ...program.group import Group
from ..instructions.lanes import scan_moves
from .config import ColumnScanConfig, RowScanConfig
from .cpu import scan_columns, scan_cpu
from .gpu import scan_gpu
from .problem import PrefixSumProblem


@dataclass(frozen=True, eq=False)
class ScanDetails:
    """What a claim remembers until its kernel is made."""

    problem: PrefixSumProblem
    # Of a GPU's rows, or of a CPU's columns; rows on a CPU have none.
    config: RowScanConfig | ColumnScanConfig | None


class PrefixSum(Template):
    """One prefix sum along an axis, of any number and length of rows."""

    name = "prefix_sum"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one operator that legalization has left without a schedule."""
        op = group.members[0]
        if len(group) != 1 or op.record is None or op.record.name != NAME:
            return Refusal("not_mine", "It is not a single cumulative sum.")
        (result,) = group.outputs
        axis, rank = op.record.attrs["axis"], len(result.shape)
        if self._is_gpu and not is_last(axis, rank):
            return Refusal("not_along_rows", f"{op.title} does not scan the last axis.")
        if op.func is None or is_scheduled(op.func):
            return Refusal("not_mine", f"Legalization has scheduled {op.title}.")
        (given,) = group.inputs
        scan = PrefixSumProblem(
            declare(given.shape, given.dtype, "x"),
            declare(result.shape, result.dtype, "sums"),
            bool(op.record.attrs["exclusive"]),
            rank - 1 if axis is None else int(axis) % rank,
        )
        config = self._config(scan, device)
        on_gpu = config if isinstance(config, RowScanConfig) else None
        return Claim(
            self,
            group,
            launches=1,
            bytes=group.bytes,
            flops=at(product(result.shape)),
            parallelism=at(product(list(result.shape)[:-1])),
            shared_bytes=on_gpu.shared_bytes if on_gpu else 0,
            registers=on_gpu.registers if on_gpu else 0,
            details=ScanDetails(scan, config),
        )

    def _config(
        self, scan: PrefixSumProblem, device: Device
    ) -> RowScanConfig | ColumnScanConfig | None:
        """Choose the configuration; a CPU's rows have none."""
        if self._is_gpu:
            return RowScanConfig.of(scan, device)
        is_row = scan.axis == len(scan.source.shape) - 1
        return None if is_row else ColumnScanConfig.of(scan)

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        details = claim.details_as(ScanDetails)
        scan, config = details.problem, details.config
        if isinstance(config, RowScanConfig):
            body = scan_gpu(scan, config, scan_moves(device_of(target), config.lanes))
        else:
            body = scan_cpu(scan) if config is None else scan_columns(scan, config)
        params = [scan.source, *claim.group.scalars, scan.target]
        func = tirx.PrimFunc(params, block("root", body)).with_attrs(
            {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
        )
        return Emission.one(func, claim.group)
