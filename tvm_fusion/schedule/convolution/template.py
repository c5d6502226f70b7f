"""The template of direct convolutions on CPUs."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tvm import DataType, tirx
from tvm.target import Target

from ...core.contract.template import Claim, Config, Emission, Refusal, Template
from ...core.decisions import Decision, Verdict
from ...core.tir.expressions import loads
from ...core.tir.loops import constant, find
from ...device import Device
from ...ecg.graph import Graph, Operator
from ...ecg.work import at
from ...program.group import Group
from ...program.images import convolution_groups
from ...program.layouts import is_layout_map
from ...program.stage import Unstructured
from ..contraction.cpu.blocking import Machine
from ..contraction.cpu.tile_product import SPEEDUP
from ..contraction.problem.pool import pooling_proposals
from ..contraction.problem.sum_of_products import Result
from ..contraction.problem.template import constants_of
from ..index.design_space import member, plain
from ..index.estimate import flops, operations, points, terms, too_many_parameters, traffic
from ..index.inline import inlined, inlined_size
from ..index.strides import SCATTER
from ..math.vector_math import makes_vectors, vector_math
from .dense.config import ConvConfig, configs, default
from .dense.kernel import dense_cpu
from .dense.row_stores import is_by_rows, square_size
from .depthwise.cpu_config import DepthwiseConfig, depthwise_config, depthwise_configs
from .depthwise.cpu_kernel import depthwise_cpu
from .problem.groups import with_groups
from .problem.problem import BLOCK, ConvProblem, conv_problem, packed
from .problem.result_layout import (
    can_store,
    conditions_known,
    has_vectors,
    is_contiguous,
    shuffles_channels,
)
from .problem.words import with_words
from .tiles.config import TileConvConfig, waste
from .tiles.config import configs as tile_configs
from .tiles.config import default as tile_default
from .tiles.kernel import tile_conv_cpu
from .tiles.problem import TileConv, tile_conv
from .winograd.choice import winograd_choice
from .winograd.config import WinogradConfig, winograd_configs, winograd_tasks
from .winograd.kernel import winograd_cpu

# The cost model assumes that arithmetic reaches 30 % of the peak; tiles of whole vectors reach two
# thirds. Of one thread, SqueezeNet takes 15.5 ms in the layout of the graph, blocked 3.9; ResNet-50
# 144 and 85, MobileNetV2 6.3 and 3.7.
TIME = 0.45
# Operations of an element in NCHW that is stored alone: of the only result, and next to the same in
# vectors of channels. On two Zen 5 cores, 64 channels of 3 x 3 x 64 products took 0.55 ms, 0.83 as
# a contraction with a padded copy; 16 of 3 x 3 x 16 took 89 us, 66 as a contraction.
PLAIN, SECOND = 200, 64
# Of one transposed in registers. On one Zen 5 core, 64 channels of 32 x 32 pixels took 14 us
# more so than in blocks, and as much in both: 0.2 ns each; 0.1 to 0.3 in five other shapes.
TRANSPOSED = 16
GATHERED = 16  # of an element that tile registers multiply, of a plain image
PRODUCT = 2  # operations of a term: a multiplication and an addition
NEAR_BYTES = 1 << 15  # of results whose elements are stored in a level-1 cache


AnyConfig = ConvConfig | DepthwiseConfig | WinogradConfig


@dataclass(frozen=True, eq=False)
class ConvDetails:
    """What a claim remembers until its kernel is made."""

    problem: ConvProblem  # the convolution
    config: AnyConfig  # how it is computed
    tiles: TileConv | None = None  # what tile registers compute


class CpuConvolution(Template):
    """Convolutions: tiles of vectors of output channels, whatever the layouts around them."""

    name = "convolution"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim one convolution with a constant weight whose results are maps of its sum."""
        if device.kind != "llvm":
            return Refusal("not_mine", "Direct convolutions are for CPUs.")
        found = self._claim(group, device)
        if isinstance(found, Refusal) and not any(map(convolution_groups, group.members)):
            return Refusal("not_mine", found.sentence)
        return found

    def _claim(self, group: Group, device: Device) -> Claim | Refusal:
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        reductions = [stage for stage in program.stages if not stage.is_map]
        if len(reductions) not in (1, 2):
            names = ", ".join(dict.fromkeys(stage.title for stage in reductions))
            sentence = (
                "A direct convolution computes one reduction, or two of which the second pools its "
                f"sums; there are {len(reductions)} ({names})."
            )
            return Refusal("several_reductions", sentence)
        refusal = too_many_parameters(program) or inlined_size(program)
        if refusal is not None:
            return refusal
        stages = inlined(program)
        lanes = Machine.of(device).unit.lanes
        problem = conv_problem(program, stages, constants_of(group))
        if isinstance(problem, Refusal):
            return problem
        grouped = with_groups(problem, lanes)
        if grouped is None:
            return Refusal(
                "groups_in_a_vector", "A vector of output channels would span several groups."
            )
        problem = grouped
        results = problem.contraction.results
        tiles = tile_conv(problem, device)
        if tiles is None:
            problem = packed(with_words(problem, device), lanes)
        if problem.image.parts and (sentence := _no_parts(problem, tiles)):
            return Refusal("joined_image", sentence)
        is_pixels = tiles is not None and _is_laid_out(group)
        if not (is_pixels or _is_convolution(problem, lanes)):
            return Refusal(
                "not_mine", "It is a GEMM: the window is one pixel, channels are not blocked."
            )
        if not can_store(results, problem, lanes):
            return Refusal(
                "strided_results",
                "Channels of a concatenation are not contiguous: vectors of them cannot be stored.",
            )
        if not conditions_known(results, problem):
            return Refusal(
                "partial_results", "A result has only a part of the channels or of the pixels."
            )
        config: AnyConfig | None
        arithmetic = ""
        if tiles is not None:
            config = tile_default(tiles, device)
        elif problem.c is None:
            config = depthwise_config(problem, device)
        else:
            config = default(problem, device)
        if config is None:
            return Refusal("strided_channels", "Channels of the image are not contiguous.")
        products = _waste(problem, config) * flops(stages)
        if problem.words is not None:
            products /= problem.words.dot.group
        if tiles is not None:
            products = waste(tiles) * flops(stages)
        elif isinstance(config, ConvConfig) and device.approximates:
            winograd = winograd_choice(problem, config, device)
            if winograd is not None and winograd.config is not None:
                config, products = winograd.config, products / winograd.gain
                arithmetic = config.name
        computed: float = -_recomputed(problem, config)
        if tiles is not None and isinstance(
            config, ConvConfig
        ):  # the arithmetic of the image is not done by tiles
            gathered = GATHERED if tiles.gathers else 0
            computed = SPEEDUP * _copied(problem, config, gathered)
        stores = _stores(problem, config) / TIME
        products += stores if tiles is None else stores * SPEEDUP
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=flops(stages),
            priced_flops=int(TIME * (products + computed)),
            parallelism=_tasks(problem, config),
            arithmetic=arithmetic,
            matrix_dtype="" if tiles is None else tiles.row.kind,
            details=ConvDetails(problem, config, tiles),
        )

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name convolutions with a pooling that alone reads what they give."""
        return pooling_proposals(graph) if device.kind == "llvm" else ()

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        details = claim.details_as(ConvDetails)
        given = claim.group.program, details.problem
        if details.tiles is not None and isinstance(details.config, TileConvConfig):
            func, packing = tile_conv_cpu(*given, details.config, details.tiles)
        else:
            func, packing = _KERNELS[type(details.config)](*given, details.config)
        return replace(Emission.one(func, claim.group), packing=packing)

    def remark(self, claim: Claim, device: Device) -> Decision | None:
        """Tell whether Winograd's algorithm is used, and why."""
        details = claim.details_as(ConvDetails)
        problem = details.problem
        if details.tiles is not None:
            return None
        direct = None if problem.c is None else default(problem, device)
        winograd = None if direct is None else winograd_choice(problem, direct, device)
        if winograd is None:
            return None
        verdict: Verdict = "accepted" if winograd.config else "refused"
        return Decision("", "", verdict, winograd.code, winograd.sentence)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate tiles and tasks."""
        return map(plain, _designs(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed convolution with other tiles or tasks."""
        chosen = member(claim, config, _designs(claim, device))
        if isinstance(chosen, Refusal):
            return chosen
        details = claim.details_as(ConvDetails)
        return replace(claim, details=replace(details, config=chosen))


_KERNELS: dict[type, Callable] = {
    ConvConfig: dense_cpu,
    DepthwiseConfig: depthwise_cpu,
    WinogradConfig: winograd_cpu,
}


_SPACES: dict[type, Callable[[ConvProblem, Device], Iterator]] = {
    ConvConfig: configs,
    DepthwiseConfig: depthwise_configs,
    WinogradConfig: winograd_configs,
}


def _designs(claim: Claim, device: Device) -> Iterator[AnyConfig]:
    details = claim.details_as(ConvDetails)
    if details.tiles is not None:
        return tile_configs(details.tiles, device)
    return _SPACES[type(details.config)](details.problem, device)


def _is_convolution(problem: ConvProblem, lanes: int) -> bool:
    """Whether it has a window, groups, pooling or blocks of channels: else it is a matrix product.

    Columns of a product are divided, too, where its results are stored by head; heads are wider.
    """
    indices = [i for r in problem.contraction.results for i in r.indices]
    indices += [i for x in loads(problem.image.value) for i in x.indices]
    divisors = {constant(d.b) for i in indices for d in find(i, tirx.FloorDiv)}
    extent = constant(problem.k.extent)
    is_padded = extent != problem.channels and extent in (lanes, BLOCK)
    is_other = problem.groups is not None or problem.pool is not None or bool(problem.image.parts)
    return is_other or bool(problem.window) or is_padded or bool(divisors & {lanes, BLOCK})


def _no_parts(problem: ConvProblem, tiles: object) -> str:
    """Tell why tasks do not copy the parts of a concatenation; empty where they do."""
    is_plain = problem.c is not None and problem.words is None and problem.groups is None
    if tiles is not None or not is_plain:
        return "Channels of a concatenation are read by float32 tiles alone."
    ends = [end for end, _ in problem.image.parts[:-1]]
    if any(end % problem.block for end in ends):
        places = ", ".join(map(str, ends))
        return (
            f"Parts of a concatenation end at channels {places}, within a block of {problem.block}."
        )
    return ""


def _is_laid_out(group: Group) -> bool:
    """Whether images have a layout: their channels are next to each other."""
    return any(is_layout_map(op.func) for op in group.members)


def _stores(problem: ConvProblem, config: AnyConfig) -> int:
    """Count the operations of storing elements that are not next to others of their pixel."""
    results, lanes = problem.contraction.results, config.lanes
    is_plain = not any(is_contiguous(r, problem, lanes) for r in results)
    # Of one image, where the number of images is symbolic.
    size = sum(
        math.prod(constant(d) or 1 for d in r.buffer.ty.shape)
        * DataType(r.buffer.ty.dtype).itemsize
        for r in results
    )
    each = PLAIN if is_plain else SECOND
    if problem.pool is not None or size <= NEAR_BYTES:
        each = SCATTER
    return sum(
        math.prod(at(d) for d in r.buffer.ty.shape)
        * (TRANSPOSED if _is_transposed(r, problem, config) else each)
        for r in results
        if not is_contiguous(r, problem, lanes)
        and (problem.pool is not None or not shuffles_channels(r, problem, lanes))
    )


def _is_transposed(result: Result, problem: ConvProblem, config: AnyConfig) -> bool:
    """Whether vectors of channels become vectors of columns."""
    if not isinstance(config, ConvConfig):
        return False
    lanes, columns = config.lanes, config.columns(constant(problem.x.extent) or 1)
    shape = config.height, columns, lanes * config.vectors
    return (
        is_by_rows(result, problem, lanes, shape)
        and square_size(result, problem, lanes, columns) > 0
        and problem.channels >= lanes
        and has_vectors(result, problem, lanes)
    )


def _waste(problem: ConvProblem, config: AnyConfig) -> float:
    """Tell how many times as many products as a convolution has its tiles compute.

    Tiles of a grouped one read the channels of several groups; few channels of results in other
    layouts leave lanes empty.
    """
    if not isinstance(config, ConvConfig):
        return 1.0
    if problem.groups is None:
        results = problem.contraction.results
        is_plain = not any(is_contiguous(r, problem, config.lanes) for r in results)
        channels = constant(problem.k.extent) or 1
        return max(1.0, config.lanes / channels) if is_plain else 1.0
    bands = problem.groups.bands(problem.channels, config.lanes * config.vectors)
    return sum(end - begin for begin, end in bands) / (len(bands) * problem.groups.c)


def _recomputed(problem: ConvProblem, config: AnyConfig) -> float:
    """Count the arithmetic of the image that a copy saves: it is done once for each chunk of k.

    Parts of a concatenation may share theirs, which the stage then counts once.
    """
    stage = problem.contraction.stage
    shared = max(0, operations(*stage.values) - PRODUCT)
    each = min(sum(map(operations, problem.image.values)), shared)
    if not isinstance(config, ConvConfig) or not each:
        return 0
    return max(0, each * points(stage) * terms(stage) - _copied(problem, config))


def _copied(problem: ConvProblem, config: ConvConfig, each: float = 0) -> float:
    """Count the arithmetic of the image where it is copied, once for each chunk of k.

    Parameters
    ----------
    each
        Operations of loading an element.
    """
    chunks = math.ceil(at(problem.k.extent) / (config.lanes * config.vectors * config.chunk))
    each += problem.image.average(
        lambda value: operations(value) * (1 if makes_vectors(vector_math(value)) else config.lanes)
    )
    return each * math.prod(at(a.extent) for a in problem.image.axes) * chunks


def _tasks(problem: ConvProblem, config: AnyConfig) -> int:
    """Count the tasks."""
    batch = math.prod(at(a.extent) for a in problem.batch)
    if isinstance(config, WinogradConfig):
        return batch * winograd_tasks(problem, config)
    y, k = constant(problem.y.extent) or 1, constant(problem.k.extent) or 1
    x = constant(problem.x.extent) or 1
    rows, columns, channels = config.band, x, config.lanes
    if isinstance(config, ConvConfig):
        rows, channels = rows * config.height, channels * config.vectors * config.chunk
    if config.part:
        columns = min(x, config.part * config.width)
    return batch * math.ceil(y / rows) * math.ceil(x / columns) * math.ceil(k / channels)
