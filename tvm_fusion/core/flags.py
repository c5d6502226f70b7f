"""Names that options of a compilation and laws have in common; nothing of TVM is needed here."""

from typing import Literal, get_args

Search = Literal["search", "greedy", "none"]
SEARCHES: tuple[Search, ...] = get_args(Search)

REASSOCIATE = "reassociate"  # of laws
APPROXIMATE = "approximate"  # of laws, Winograd's convolutions, activations of int8 on CPUs
TF32 = "tf32"  # of the kernels of matrix products, rather than of laws
#: Laws outside floating point's promise, by the name that a user allows them with.
FLAGS = {
    REASSOCIATE: "intermediate results may overflow, or cancel, where the original's do not, and"
    " be finite where they are not",
    APPROXIMATE: "results may differ by more than the dtype's tolerance",
    TF32: "on CUDA, matrix products of float32 may round their operands to tfloat32 (10 bits)",
}
