"""Which form of attention a GPU's kernels take: the first in this table that it has.

    flash-decoding     few queries: keys split between blocks, partial results merged in a launch
                       of its own
    FlashAttention     operands of half types, on tensor cores; of the kernels with mma.sync, with
                       wgmma and with TMA the one that is estimated to be fastest; on AMD GPUs with
                       MFMA or WMMA
    CUDA cores         anything else

A refusal of another code than ``other_form`` ends the search: the operators are better apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.contract.forms import Form, Row, first_of, other_form
from ...core.contract.template import Refusal
from ...core.tir.expressions import loads
from ...device import Device
from ...ecg.work import at
from ..instructions.nvidia import HALF_TYPES
from ..instructions.table import find_of_fragments
from .cuda_cores.config import GpuConfig
from .decode.config import WIDEST_TILE, FlashDecodeConfig, flash_decode_config
from .flash.config import FlashMmaConfig
from .flash.model import candidates, cycles, flash_mma_config, many_queries
from .flash.problem import FlashProblem, flash_problem
from .flash.prologue_cost import expensive_prologue
from .flash.tma.config import FlashTmaConfig
from .flash.wave.config import FlashWaveConfig
from .problem.pattern import Pattern
from .space import KERNELS, Config

MANY_QUERIES = 64  # which tensor cores would multiply in tiles


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """A form of attention."""

    config: Config  # its kernels
    problem: FlashProblem | None = None  # what kernels on tensor cores compute

    def many(self, device: Device) -> tuple[int, FlashMmaConfig] | None:
        """Choose a second kernel for many queries: see :func:`.flash.model.many_queries`."""
        if self.problem is None or not isinstance(self.config, FlashMmaConfig):
            return None
        return many_queries(self.problem, device, self.config)


Found = AttentionForm | Refusal


def _flash_decoding(pattern: Pattern, device: Device) -> Found:
    found = flash_decode_config(pattern, device)
    return found if isinstance(found, Refusal) else AttentionForm(found)


def _flash(pattern: Pattern, device: Device) -> Found:
    problem = flash_problem(pattern)
    if problem is None:
        sentence = "It has a single query." if pattern.query is None else _types(pattern)
        return other_form(sentence)
    config = flash_mma_config(problem, device)
    if config is None:
        return other_form(f"No tensor-core tile fits heads of {_width(pattern)}.")
    refusal = expensive_prologue(problem, config, device)
    return refusal or AttentionForm(config, problem)


def _cuda_cores(pattern: Pattern, device: Device) -> Found:
    refusal = _slow_on_cuda_cores(pattern, device)
    return refusal or AttentionForm(GpuConfig.of(pattern, device))


ROWS: tuple[Row[AttentionForm], ...] = (
    Row("flash-decoding", _flash_decoding),
    Row("FlashAttention", _flash),
    Row("CUDA cores", _cuda_cores),
)


def choose(pattern: Pattern, device: Device) -> AttentionForm | Refusal:
    """Choose the form of an attention.

    Parameters
    ----------
    pattern
        The attention, constants written into it.
    """
    return first_of(ROWS, pattern, device)


def weighed(pattern: Pattern, device: Device) -> tuple[Form, ...]:
    """Tell a reader what every row of the table gives, and which of them is chosen."""
    first, forms = "", []
    for row in ROWS:
        found = row.make(pattern, device)
        if isinstance(found, Refusal):
            forms.append(Form(row.name, "", None, False, found.sentence))
            continue
        why = f"The form '{first}' takes precedence." if first else ""
        if found.problem is None:
            forms.append(Form(row.name, _described(found.config), None, not first, why))
        else:
            forms += _on_tensor_cores(row.name, found, found.problem, device, why)
        first = first or row.name
    return tuple(forms)


def _on_tensor_cores(
    name: str, found: AttentionForm, problem: FlashProblem, device: Device, why: str
) -> Iterator[Form]:
    """List the kernel that was chosen, and the fastest ones with other instructions."""
    best: dict[str, tuple[float, FlashMmaConfig]] = {}
    for config in candidates(problem, device):
        clocks = cycles(config, problem, device)
        if clocks < best.get(_unit(config), (float("inf"),))[0]:
            best[_unit(config)] = clocks, config
    for clocks, config in sorted(best.values(), key=lambda one: one[0]):
        is_best = config == found.config
        reason = why or ("" if is_best else "Estimated to be slower.")
        yield Form(name, _described(config), clocks, is_best and not why, reason)


def _described(config: Config) -> str:
    """Name a kernel and its tile for a reader."""
    if isinstance(config, FlashDecodeConfig):
        unit = "mma.sync" if config.uses_mma else "CUDA cores"
        return f"{unit}, {config.splits} splits of keys"
    if isinstance(config, FlashMmaConfig):
        return f"{_unit(config)}, {config.block_m} queries x {config.block_n} keys"
    name, _ = KERNELS.fields[type(config)]
    return f"{name}, {config.block_m} queries x {config.keys} keys"


def _unit(config: FlashMmaConfig) -> str:
    if isinstance(config, FlashTmaConfig):
        return "wgmma with TMA"
    if isinstance(config, FlashWaveConfig):
        return config.instruction.family.upper()
    return "wgmma" if config.uses_wgmma else "mma.sync"


def _types(pattern: Pattern) -> str:
    types = " and ".join(dict.fromkeys(pattern.operand_dtypes))
    return f"Operands are {types}, not one half type."


def _width(pattern: Pattern) -> int:
    return max(at(pattern.depth.extent), at(pattern.column.extent))


def _slow_on_cuda_cores(pattern: Pattern, device: Device) -> Refusal | None:
    """Refuse heads that are too wide for tensor cores, which multiply them in kernels of their own.

    On an H200, one head of 512 elements over 4,096 tokens took 17.5 ms.
    """
    width = _width(pattern)
    queries = 1 if pattern.query is None else at(pattern.query.extent)
    types = {str(x.ty.dtype) for e in (pattern.q, pattern.k) for x in loads(e)}
    has_units = types <= {x for x in HALF_TYPES if find_of_fragments(device, x, x)}
    if not has_units or width <= WIDEST_TILE or queries < MANY_QUERIES:
        return None
    return Refusal(
        "head_too_large",
        f"The head dimension is {width}; beyond {WIDEST_TILE}, two GEMMs on tensor cores and a "
        "separate softmax are faster.",
    )
