"""The kernel of a convolution on tile registers: the loops of a dense one around other tiles."""

from __future__ import annotations

from tvm import tirx

from ....core.tir.loops import constant
from ....program.program import Program
from ...contraction.problem.packing_function import packed_kernel
from ...index.index_ranges import Ranges
from ..dense.image_copy import CopiedImage, DirectImage
from ..dense.kernel import DenseLoops
from ..problem.groups import Band
from ..problem.image_reader import ImageReader
from ..problem.problem import ConvProblem
from .config import TileConvConfig
from .problem import TileConv
from .tile import RegisterTiles
from .weight import TileWeight


def tile_conv_cpu(
    program: Program, problem: ConvProblem, config: TileConvConfig, conv: TileConv
) -> tuple[tirx.PrimFunc, dict[int, tirx.PrimFunc]]:
    """Make the kernel, and the function that packs the weight, by its position among the inputs."""
    ranges, width = Ranges(), config.vectors * config.lanes
    weight = TileWeight(conv, config.vectors)
    pixels = config.band * config.height, config.columns(constant(problem.x.extent) or 1)
    image: ImageReader = DirectImage(conv.single)
    if not conv.in_place:
        band = Band(conv.single, config.chunk * width)
        image = CopiedImage(conv.single, pixels, band, conv.single.block)
    tile = RegisterTiles(problem, conv, config, image, weight, ranges)
    loops = DenseLoops(problem, config, image, weight, tile, ranges)
    return packed_kernel(program, loops.tasks(), [weight])
