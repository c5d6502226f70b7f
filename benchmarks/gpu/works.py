"""What is timed, in PyTorch: exported and compiled ahead, or run by PyTorch's own compiler."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

Shape = tuple[int, ...]
DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}
HALF = ("float16", "bfloat16")  # of random workloads
# Roundings; in float32 that of sums of thousands of terms.
ALLOWED_ERRORS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-18}


@dataclass(frozen=True)
class Work:
    """One function and the shapes that it is timed with."""

    name: str  # of the row, unique; names a folder as well
    function: Callable[..., Tensor | tuple[Tensor, ...]]  # takes and returns tensors
    shapes: tuple[Shape, ...]  # of its arguments
    dtype: str = "float16"  # of all arguments but the packed ones
    packed: tuple[int, ...] = ()  # positions of arguments of bytes
    floor: float | None = None  # the least part of the copy bandwidth
    limit_us: float | None = None  # the most microseconds
    # It is compiled for any number of the first argument's rows up to this; ``None``: for those
    # that it has.
    most_rows: int | None = None
    allow: tuple[str, ...] = ()  # flags of its compilation
    seed: int | None = None  # what its shapes were drawn from; ``None``: they are named

    def rival(self) -> Callable[..., Tensor | tuple[Tensor, ...]]:
        """Return the baseline: PyTorch's compiler."""
        return torch.compile(self.function, dynamic=False)

    def peers(self) -> dict[str, Callable[..., Tensor | tuple[Tensor, ...]]]:
        """Return all baselines, PyTorch's compiler first."""
        return {"inductor": self.rival()}

    def given(self, side: str, arguments: list[Tensor]) -> list[Tensor]:
        """Lay arguments out as a side wants them; what that takes is not timed."""
        return arguments

    def reference(self, *arguments: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Compute it from arguments in float64."""
        return self.function(*arguments)

    def module(self) -> torch.nn.Module:
        """Wrap the function as PyTorch exports it."""
        return _Called(self.function)

    @property
    def allowed_error(self) -> float:
        """The rounding of its type."""
        return ALLOWED_ERRORS[self.dtype]

    @property
    def static(self) -> tuple[int, ...]:
        """Positions of arguments that stay where they are from call to call."""
        return ()

    @property
    def in_place(self) -> tuple[int, ...]:
        """Positions of arguments that are written to."""
        return ()

    def examples(self) -> list[Tensor]:
        """Return arguments for the export; not of one row, which would be taken for static."""
        if self.most_rows is None:
            return self.draw(0, "cpu")
        (_, *columns), *others = self.shapes
        return replace(self, shapes=((self.most_rows, *columns), *others)).draw(0, "cpu")

    def exported(self) -> torch.export.ExportedProgram:
        """Export the workload with PyTorch."""
        examples = tuple(self.examples())
        if self.most_rows is None:
            return torch.export.export(self.module(), examples)
        rows = torch.export.Dim("rows", min=1, max=self.most_rows)
        dynamic = ({0: rows}, *({} for _ in examples[1:]))
        return torch.export.export(self.module(), examples, dynamic_shapes=dynamic)

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw arguments from a normal distribution; bytes are all equally likely."""
        generator = torch.Generator(device).manual_seed(seed)
        dtype = DTYPES[self.dtype]

        def make(position: int, shape: Shape) -> Tensor:
            if position in self.packed:
                return torch.randint(
                    256, shape, generator=generator, device=device, dtype=torch.uint8
                )
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        return [make(position, shape) for position, shape in enumerate(self.shapes)]

    def touched(self, arguments: list[Tensor], results: list[Tensor]) -> int:
        """Count the bytes that have to be read and written: here, all."""
        return sum(t.nbytes for t in (*arguments, *results))


class Block(Work):
    """A work of several products, whose factors are scaled so that half types hold all results."""

    def draw(self, seed: int, device: str) -> list[Tensor]:
        """Draw arguments from normal distributions."""
        first, *others = super().draw(seed, device)
        return [first, *(t * len(t) ** -0.5 if t.ndim == 2 else t for t in others)]


class _Called(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.forward = function


def softmax(x: Tensor) -> Tensor:
    """Softmax of rows."""
    return torch.softmax(x, -1)


def layer_norm_gelu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer norm, then GELU."""
    return functional.gelu(functional.layer_norm(x, x.shape[-1:], scale, shift, 1e-5))


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer norm."""
    return functional.layer_norm(x, x.shape[-1:], scale, shift, 1e-5)


def row_sums(x: Tensor) -> Tensor:
    """Sum rows in float32."""
    return x.float().sum(-1)


def gelu(x: Tensor) -> Tensor:
    """GELU."""
    return functional.gelu(x)


def rms_norm_residual(x: Tensor, residual: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Add a residual; the sum, and its RMS norm."""
    total = x + residual
    wide = total.float()
    norm = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return total, norm.to(total.dtype) * scale


def gates(x: Tensor) -> Tensor:
    """Return tanh(2x + 1) * sigmoid(x)."""
    return torch.tanh(2 * x + 1) * torch.sigmoid(x)


def transpose_cast(x: Tensor) -> Tensor:
    """Transpose into float32."""
    return x.transpose(0, 1).to(torch.float32).contiguous()


def group_norm_silu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Group norm of 32 groups, then SiLU."""
    return functional.silu(functional.group_norm(x, 32, scale, shift, 1e-5))


def gemv(x: Tensor, weight: Tensor) -> Tensor:
    """One row times a matrix."""
    return x @ weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Rows times a matrix that is stored as checkpoints do: along the terms."""
    return functional.linear(x, weight)


def int4_linear(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """Compute the same with two weights a byte, and scales of groups of terms."""
    columns, groups = scale.shape
    weight = torch.stack([packed & 15, packed >> 4], -1).reshape(columns, groups, -1)
    weight = (weight.to(x.dtype) - 8) * scale[:, :, None]
    return functional.linear(x, weight.reshape(columns, -1))


def rms_norm(x: Tensor, scale: Tensor) -> Tensor:
    """RMS norm in float32."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * scale


def swiglu_block(x: Tensor, scale: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """RMS norm, gated product with SiLU, product, residual."""
    norm = rms_norm(x, scale)
    return x + (functional.silu(norm @ gate) * (norm @ up)) @ down


def swiglu_joined(x: Tensor, scale: Tensor, sides: Tensor, down: Tensor) -> Tensor:
    """Compute the same with gate and up side by side, as constant weights are stored."""
    gate, up = (rms_norm(x, scale) @ sides).chunk(2, -1)
    return x + (functional.silu(gate) * up) @ down


ROWS: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], Callable[[int, int], tuple]]] = {
    "softmax": (softmax, lambda m, n: ((m, n),)),
    "layer_norm_gelu": (layer_norm_gelu, lambda m, n: ((m, n), (n,), (n,))),
    "rms_norm_residual": (rms_norm_residual, lambda m, n: ((m, n), (m, n), (n,))),
    "gates": (gates, lambda m, n: ((m, n),)),
    "transpose_cast": (transpose_cast, lambda m, n: ((m, n),)),
}
NAMED = (
    *(
        Work(f"{name}_8192x4096", ROWS[name][0], ROWS[name][1](8192, 4096), floor=0.88)
        for name in ("softmax", "layer_norm_gelu", "rms_norm_residual")
    ),
    Work("gates_8192x8192", gates, ((8192, 8192),), floor=0.85),
    Work("transpose_cast_8192x8192", transpose_cast, ((8192, 8192),), floor=0.80),
    Work(
        "group_norm_silu_2x320x64x64", group_norm_silu, ((2, 320, 64, 64), (320,), (320,)),
        limit_us=9,
    ),
    Work("gemv_4096x28672", gemv, ((1, 4096), (4096, 28672)), limit_us=60),
    Work("linear_4096x14336", linear, ((1, 4096), (14336, 4096)), floor=0.85),
    Work("linear_8_rows_4096x14336", linear, ((8, 4096), (14336, 4096))),
    Work("linear_any_1_row_4096x14336", linear, ((1, 4096), (14336, 4096)), most_rows=64),
    Work("linear_any_8_rows_4096x14336", linear, ((8, 4096), (14336, 4096)), most_rows=64),
    Work(
        "int4_linear_4096x14336", int4_linear, ((1, 4096), (14336, 2048), (14336, 32)),
        packed=(1,), floor=0.70,
    ),
    Block(
        "swiglu_block_4096_14336", swiglu_block,
        ((1, 4096), (4096,), (4096, 14336), (4096, 14336), (14336, 4096)), limit_us=94,
    ),
    Block(
        "swiglu_joined_4096_14336", swiglu_joined,
        ((1, 4096), (4096,), (4096, 28672), (14336, 4096)), limit_us=94,
    ),
)  # fmt: skip
RANDOM_ELEMENTS = 1 << 23, 1 << 26
NORMS, LONG_NORMS = 8, 4  # random layer norms of rows up to LONG elements, and of longer ones
SHORT, LONG, LONGEST = 64, 4096, 16384
NORM, ALIGNED = "layer_norm_gelu_", 8  # elements of half types of a row
# Loads alone; all but GELU; all but the statistics and what rows share.
NORM_PARTS = {"row_sums": (row_sums, 1), "layer_norm": (layer_norm, 3), "gelu": (gelu, 1)}


def drawn(seed: int, count: int) -> list[Work]:
    """Draw shapes of the memory-bound works, a third of them with odd rows."""
    source = random.Random(seed)
    return [_drawn(source, source.choice([*ROWS]), SHORT, LONGEST, seed) for _ in range(count)]


def drawn_norms(seed: int) -> list[Work]:
    """Draw shapes of layer norm with GELU: of rows that a block keeps, then of longer ones."""
    source = random.Random(f"norms {seed}")
    ranges = [(SHORT, LONG)] * NORMS + [(LONG + 1, LONGEST)] * LONG_NORMS
    return [_drawn(source, "layer_norm_gelu", low, high, seed) for low, high in ranges]


def norm_parts(seed: int) -> list[Work]:
    """Leave stages out of random norms of unaligned rows: each rest is a kernel of its own."""
    norms = [work for work in drawn_norms(seed) if work.shapes[1][0] % ALIGNED]
    return [
        Work(
            f"{name}_{work.name.removeprefix(NORM)}",
            function,
            work.shapes[:count],
            work.dtype,
            seed=seed,
        )
        for work in norms
        for name, (function, count) in NORM_PARTS.items()
    ]


def _drawn(source: random.Random, kind: str, low: int, high: int, seed: int) -> Work:
    elements = source.uniform(*RANDOM_ELEMENTS)
    columns = source.randint(low, high)
    columns -= columns % ALIGNED if source.random() < 2 / 3 else 0
    rows = max(1, int(elements / columns))
    function, shapes = ROWS[kind]
    dtype = source.choice(HALF)
    name = f"{kind}_{rows}x{columns}_{dtype}"
    return Work(name, function, shapes(rows, columns), dtype, floor=0.80, seed=seed)
