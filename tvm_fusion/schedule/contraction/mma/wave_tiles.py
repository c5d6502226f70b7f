"""Tiles of AMD's matrix cores: those to choose among, and what a wave's own instructions take.

Two stages lie in the LDS of 64 KiB. With 64 bytes of K those of 128 x 128 are half of it, and a
compute unit has two blocks. A wave has 64 x 64 sums where it can: of a step its fragments are as
many reads as halves of it would need, for twice the products, and LDS is busy three quarters of the
time that products take. Smaller blocks have fewer such waves, or share K among them, before these
become smaller: their sums are added up in LDS, without the second kernel of split-K.

No device was there: clocks are the instruction set guides', of issue slots and of products.
"""

from ..tile.shape import M16, WAVE64, TileConfig

Tile = tuple[int, int, int, int, int]

# (block_m, block_n, warps_m, warps_n, warps_k), the largest first.
_WAVES_OF_64 = (
    (128, 128, 2, 2, 1),
    (128, 64, 2, 1, 1),
    (64, 128, 1, 2, 1),
    (64, 64, 1, 1, 1),
    (64, 64, 1, 1, 4),
    (64, 64, 2, 2, 1),
    (64, 64, 1, 1, 2),
    (32, 128, 1, 2, 1),
    (32, 64, 1, 1, 1),
    (64, 32, 1, 1, 1),
    (32, 64, 1, 1, 2),
    (32, 64, 1, 1, 4),
    (32, 32, 1, 1, 1),
    (32, 32, 1, 1, 4),
    (16, 128, 1, 2, 1),
    (16, 64, 1, 1, 2),
    (16, 64, 1, 1, 4),
)
_WAVES_OF_32 = (
    (128, 128, 2, 4, 1),
    (128, 64, 2, 2, 1),
    (64, 128, 1, 4, 1),
    (64, 64, 1, 2, 1),
    (64, 64, 2, 2, 1),
    (64, 64, 1, 2, 2),
    (32, 128, 1, 2, 1),
    (32, 64, 1, 2, 1),
    (32, 64, 1, 2, 2),
    (64, 32, 2, 1, 1),
    (32, 32, 1, 2, 2),
    (32, 32, 1, 1, 8),
    (32, 32, 1, 1, 4),
    (16, 128, 1, 4, 1),
    (16, 64, 1, 2, 2),
    (16, 64, 1, 2, 4),
)
WAVE_STAGES, WAVE_BLOCK_K_BYTES = (2,), (64, 128, 256, 512)
LATENCY = 1000.0  # clocks from a load to its arrival
# Seconds of another kernel of the same product: twice what the planner assumes of a launch, so that
# estimates alone do not prefer two kernels to one that is about as fast.
NEXT_LAUNCH = 4e-6
L1_BYTES = 64.0  # that a compute unit reads in a clock at most
OF_L3 = 3.0  # how much faster the Infinity Cache is than memory (CDNA3 white paper)
_SIMDS = {64: 4, 32: 2}  # of a compute unit, by the lanes of a wave
_ISSUE = {64: 4, 32: 1}  # clocks of an instruction
_STEP = 20  # instructions of a step besides its loads, stores and products


def wave_tiles(lanes: int) -> tuple[Tile, ...]:
    """List the default's candidates, for waves of so many lanes."""
    return _WAVES_OF_64 if lanes == 64 else _WAVES_OF_32


def wave_clocks(shape: TileConfig, mma: float, own: float) -> tuple[float, float]:
    """Estimate the clocks of a stage.

    Parameters
    ----------
    mma
        Clocks of its products if all SIMDs of a compute unit shared them.
    own
        A clock of the device, in those.

    Returns
    -------
    tuple of two float
        What a block takes of a compute unit that others fill, and what it takes alone.
    """
    operands, lanes = shape.operands, shape.operands.mma.lanes
    simds, waves = _SIMDS[lanes], shape.threads // lanes
    chunks = shape.stage_bytes // 16
    steps = shape.block_k // operands.k_step // shape.warps_k
    each = operands.k_step * operands.mma.k_per_lane // operands.mma.k // operands.chunk
    reads = (shape.warp_m + shape.warp_n) // M16 * steps * each
    issued = own * _ISSUE[lanes] * (reads + 2 * -(-chunks // shape.threads) + _STEP)
    # RDNA has one pipe for products and for vector instructions.
    busy = mma if lanes == WAVE64 else mma + issued * waves / simds
    return busy, mma * simds / min(simds, waves) + issued * -(-waves // simds)
