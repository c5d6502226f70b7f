"""The template for prefix sums, with maps before and behind them."""

from collections.abc import Iterable
from dataclasses import dataclass

from tvm import tirx
from tvm.target import Target

from ...core.contract.template import Claim, Emission, Refusal, Template
from ...core.tir.loops import block, product
from ...core.untouched import SCHEDULED, is_scheduled
from ...device import Device, device_of
from ...ecg.graph import Graph, Operator
from ...ecg.legalization.operators.scan import NAME
from ...ecg.work import at
from ...program.group import Group
from ..index.proposals import LIGHT, in_order, leaves, own_producers
from ..instructions.lanes import scan_moves
from .config import ColumnScanConfig, RowScanConfig
from .cpu import scan_columns, scan_cpu
from .gpu import scan_gpu
from .problem import PrefixSumProblem, prefix_sum

MOST_MAPS = 16  # before a sum, and behind it


@dataclass(frozen=True, eq=False)
class ScanDetails:
    """What a claim remembers until its kernel is made."""

    problem: PrefixSumProblem
    # Of a GPU's rows, or of a CPU's columns; rows on a CPU have none.
    config: RowScanConfig | ColumnScanConfig | None


class PrefixSum(Template):
    """One prefix sum along an axis, of any number and length of rows, with maps around it."""

    name = "prefix_sum"

    def __init__(self, is_gpu: bool) -> None:
        self._is_gpu = is_gpu

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one operator that legalization has left without a schedule, and maps around it."""
        scan = prefix_sum(group)
        if isinstance(scan, Refusal):
            return scan
        if self._is_gpu and scan.axis != len(scan.shape) - 1:
            return Refusal("not_along_rows", f"{group.title} does not scan the last axis.")
        if any(op.func is None or is_scheduled(op.func) for op in group.members):
            return Refusal("not_mine", f"Legalization has scheduled a part of {group.title}.")
        config = self._config(scan, device)
        on_gpu = config if isinstance(config, RowScanConfig) else None
        return Claim(
            self,
            group,
            launches=1,
            bytes=group.bytes,
            flops=at(product(scan.shape)) * scan.operations,
            parallelism=at(product(scan.rows)),
            shared_bytes=on_gpu.shared_bytes if on_gpu else 0,
            registers=on_gpu.registers if on_gpu else 0,
            details=ScanDetails(scan, config),
        )

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name sums with the maps that only they read, and with the maps of them."""
        for op in graph.operators:
            if op.record is None or op.record.name != NAME:
                continue
            before = own_producers(graph, [op], LIGHT, MOST_MAPS)
            behind = _readers(graph, op)
            for sides in ((*before, *behind), before, behind):
                if sides:
                    yield in_order({op, *sides})

    def _config(
        self, scan: PrefixSumProblem, device: Device
    ) -> RowScanConfig | ColumnScanConfig | None:
        """Choose the configuration; a CPU's rows have none."""
        if self._is_gpu:
            return RowScanConfig.of(scan, device)
        is_row = scan.axis == len(scan.shape) - 1
        return None if is_row else ColumnScanConfig.of(scan)

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write the kernel."""
        details = claim.details_as(ScanDetails)
        scan, config = details.problem, details.config
        if isinstance(config, RowScanConfig):
            body = scan_gpu(scan, config, scan_moves(device_of(target), config.lanes))
        else:
            body = scan_cpu(scan) if config is None else scan_columns(scan, config)
        params = [*scan.inputs, *claim.group.scalars, *scan.outputs]
        func = tirx.PrimFunc(params, block("root", body)).with_attrs(
            {"s_tir": True, "tirx.noalias": True, SCHEDULED: True}
        )
        return Emission.one(func, claim.group)


def _readers(graph: Graph, op: Operator) -> list[Operator]:
    """List maps of a running sum, up to the first result that others read, too."""
    found: list[Operator] = []
    last = op
    while len(found) < MOST_MAPS and not leaves(last):
        readers = list(dict.fromkeys(graph.successors(last)))
        if len(readers) != 1 or readers[0].type not in LIGHT:
            break
        last = readers[0]
        found.append(last)
    return found
