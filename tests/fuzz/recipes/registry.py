"""How a recipe is registered, and how it finds operands that fit."""

from collections.abc import Callable, Sequence

from ..builder import Builder, Rejected
from ..dims import Dim, Extent

Recipe = Callable[[Builder], None]
RECIPES: dict[str, tuple[Recipe, float]] = {}  # with the weights
WIDE_RECIPES: dict[str, tuple[Recipe, float]] = {}  # of graphs that draw integers


def recipe(weight: float = 1.0, wide: bool = False) -> Callable[[Recipe], Recipe]:
    """Register a recipe; it is chosen in proportion to its weight."""

    def register(function: Recipe) -> Recipe:
        (WIDE_RECIPES if wide else RECIPES)[function.__name__] = (function, weight)
        return function

    return register


def is_static(extent: Extent) -> bool:
    return isinstance(extent, int)


def static_axes(shape: Sequence[Extent], least: int = 1) -> list[int]:
    """List the axes whose extent is an integer and at least so large."""
    return [i for i, extent in enumerate(shape) if isinstance(extent, int) and extent >= least]


def static(extent: Extent) -> int:
    """Return an extent that must be an integer."""
    if isinstance(extent, Dim):
        raise Rejected("symbolic")
    return extent


def partner(b: Builder, value: int, dtype: str | None = None) -> int:
    """Find or make an operand that broadcasts with a value, possibly both ways."""
    shape, dtype = b.shape(value), dtype or b.dtype_of(value)
    if b.chance(0.75):
        try:
            return b.pick(lambda v: b.dtype_of(v) == dtype and broadcasts(b.shape(v), shape))
        except Rejected:
            pass
    kept = b.integer(0, len(shape) + 1) if b.chance(0.4) else 0
    other: list[Extent] = [
        1 if b.chance(0.3) else extent if extent != 1 or b.chance(0.5) else b.one_of([3, 5, 7])
        for extent in shape[kept:]
    ]
    if dtype == "bool":
        return b.leaf(other, dtype)
    if dtype.startswith("int"):
        return b.leaf(other, dtype, low=-9, high=10)
    return b.leaf(other, dtype)


def broadcasts(one: Sequence[Extent], two: Sequence[Extent]) -> bool:
    pairs = zip(reversed(one), reversed(two), strict=False)
    return bool(one) and all(a == b or a == 1 or b == 1 for a, b in pairs)


def within(b: Builder, value: int, bound: float) -> int:
    """Bound a value to (-bound, bound) by a smooth function."""
    small = b.emit(b.one_of(["tanh", "sin", "erf"]), value)
    return b.emit("multiply", small, b.scalar(bound, b.dtype_of(value)))


def positive(b: Builder, value: int) -> int:
    """Make a value positive and keep it away from zero."""
    name = b.one_of(["abs", "square", "sigmoid", "exp"])
    value = within(b, value, 2) if name == "exp" else value
    return b.emit("add", b.emit(name, value), b.scalar(0.5, b.dtype_of(value)))


def mask_for(b: Builder, shape: Sequence[Extent]) -> int:
    """Find or make a mask that broadcasts with a shape."""
    try:
        return b.pick(lambda v: b.dtype_of(v) == "bool" and broadcasts(b.shape(v), shape))
    except Rejected:
        return b.leaf([1 if b.chance(0.2) else e for e in shape], "bool")


def image(b: Builder, rank: int = 4, least: int = 1) -> int:
    """Find a value with static channels and space, or reshape one into such."""

    def fits(shape: Sequence[Extent]) -> bool:
        return (
            len(shape) == rank
            and len(static_axes(shape[1:])) == rank - 1
            and all(static(e) >= least for e in shape[2:])
        )

    if b.chance(0.85):
        try:
            return b.pick_float(fits)
        except Rejected:
            pass
    space = [b.one_of([5, 7, 8, 9, 17]) for _ in range(rank - 2)]
    return b.leaf([b.one_of([1, 2]), b.one_of([1, 3, 4, 8]), *space], constant=False)


def paddings(b: Builder, rank: int, limit: int) -> list[int]:
    return [b.integer(0, limit + 1) for _ in range(2 * rank)]


def indices(b: Builder, shape: Sequence[Extent], bound: int) -> int:
    """Make indices below a bound: a leaf, or integers that the graph has computed."""
    if b.chance(0.4):
        try:
            x = b.pick(lambda v: b.dtype_of(v).startswith("int") and b.shape(v) == tuple(shape))
            x = b.emit("abs", x)
            return b.emit("floor_mod", x, b.scalar(bound, b.dtype_of(x)))
        except Rejected:
            pass
    return b.leaf(shape, b.one_of(["int32", "int64"]), low=0, high=bound, constant=False)
