"""Memory of each worker's GPU that the others' kernels write to: its layout. Imports no TVM.

    0       not 0 when a worker has ended: kernels stop waiting
    TURNS   of each block, how many exchanges it has finished
    LINES   2 sets, which take turns; of each the workers' lines, one for each block

Every 8 bytes of a line are 4 of a tensor and the number of the exchange, so that a reader knows
when they have come (NCCL calls it LL).
"""

WEIGHT = "peer_memory"  # the weight that holds the addresses by rank, and the worker's own rank
MOST_BYTES = 256 << 10  # of a tensor; of larger ones NCCL's rings take less time
MOST_ROWS = 32  # one block for each
ROW_BYTES = 16 << 10
TURNS, LINES = 256, 4096


def nbytes(size: int) -> int:
    """Return the bytes of each worker's memory, for so many workers."""
    return LINES + 2 * size * MOST_ROWS * 2 * ROW_BYTES
