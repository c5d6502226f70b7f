"""What a user can choose about a compilation; the fields are the command line's options."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from .core.flags import FLAGS, SEARCHES, Search
from .errors import UserError, refuse_lfs_pointer, unknown_name, whole_number
from .signature import DimRange

Precision = Literal["fp32", "fp16", "bf16", "auto"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
#: Precisions in which a model is stored: ``auto`` chooses one of them.
STORED = PRECISIONS[:-1]
#: What workers may have of a weight.
ROLES = ("whole", "columns", "rows", "split")
_NUMBER, _PATH = (int, float, type(None)), (str, os.PathLike, type(None))
# Types of the fields that no other check looks at, and how a user writes them.
_TYPES: dict[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("dims", "constants", "samples", "shards"), ((Mapping,), "a dict by name")),
    **dict.fromkeys(("half_io", "cuda_graph", "fast_math"), ((bool,), "True or False")),
    "wide_residuals": ((bool, type(None)), "True or False"),
    "error_bound": (_NUMBER, "a number"),
    **dict.fromkeys(("dump", "db"), (_PATH, "a path")),
    "profile": ((str, type(None)), "a budget, such as '60s'"),
}
_MOST_WORKERS = 64  # of one machine


@dataclass(frozen=True)
class FusionConfig:
    """Options of one compilation.

    Attributes
    ----------
    precision : {"fp32", "fp16", "bf16", "auto"}
        Storage type of activations and weights. Sums, norms and softmax stay in float32. ``auto``
        compiles in all three, runs them on this machine, and takes the fastest whose error is
        within ``error_bound``.
    error_bound : float, optional
        Of ``auto``: largest max|a-b|/max|b| of an output against float32's; when omitted, what
        `tvm-fusion check` allows the precision: 1e-2 for fp16 and 5e-2 for bf16.
    samples : mapping of str to array_like
        Of ``auto``: inputs that are run, by name; others are random.
    half_io : bool
        Let inputs and outputs take ``precision`` too; by default they keep the model's dtypes.
    wide_residuals : bool, optional
        At a half precision, keep residual streams that norms read or made in float32, rows of
        embeddings where they begin, and sums: errors are half as large or less, and these bytes
        twice as many. By default so on CPUs, where streams stay in caches and products take the
        time.
    dims : mapping of str to (int or DimRange)
        Binds a symbolic dimension of the model to an extent, or keeps it symbolic within a range.
    constants : mapping of str to array_like
        Values of inputs of an ONNX model that are the same in every run, such as axes, sizes or a
        number of steps: the compiled model is of these values and no longer has the inputs.
    cuda_graph : bool
        On GPUs, let all launches of a function of static shapes be one CUDA or HIP graph.
    static_inputs : collection of str
        Inputs that lie at the same addresses in every call, such as caches: a CUDA graph reads them
        where they are instead of copies. At other addresses it is captured again, which is slow.
    in_place : mapping of str to str, or collection of str
        Inputs that are written to, with the outputs whose values they are to hold; names alone
        stand for both. Functions without the output read the input. See
        :mod:`tvm_fusion.deploy.memory.in_place`.
    rewrite : {"search", "greedy", "none"}
        Which equivalent graph is chosen: the cheapest by the planner's cost model, by DNNFusion's
        greedy rule of fewest operations, or the model's own.
    allow : collection of str
        Algebraic laws and arithmetic that may be used although they change results by more than
        rounding: names of :data:`tvm_fusion.core.flags.FLAGS`.
    fast_math : bool
        Allow all of them.
    without : collection of str
        Rewriting rules that may not be used, by name: laws, recompositions, ``join_matmuls``.
    workers : int
        How many workers run the model, each with a part of its weights and caches: processes on one
        machine, on GPUs one for each. See :mod:`tvm_fusion.parallel`.
    shards : mapping of str to {"whole", "columns", "rows", "split"}
        By pattern of weights' names, such as ``"*.mlp.*"``, what the workers have of them: all of
        it; columns or rows of their products; or what is found, whatever it costs. What is not
        named is split where that is estimated to pay.
    dump : str or Path, optional
        Folder to write one re-loadable TVMScript file into after every stage.
    db : str or Path, optional
        Records of :func:`tvm_fusion.tune`, whose configurations kernels take; those that the
        environment variable ``TVM_FUSION_RECORDS`` names when omitted.
    profile : str, optional
        How long planning may measure what ``db`` has no answer for, such as ``"5m"`` or
        ``"trials=100"``: operators fused against unfused, where the mapping table says that it
        depends. Needs the device. By default recorded answers are used and the rest is estimated.

    Raises
    ------
    UserError
        For a value that an option does not take, and for options that contradict each other; names
        of the model are checked when it is read.

    Examples
    --------
    >>> config = FusionConfig(precision="fp16", dims={"batch": DimRange(1, 8), "length": 128})
    >>> config.flags
    ()
    >>> FusionConfig(precision="fp8")
    Traceback (most recent call last):
        ...
    tvm_fusion.errors.UserError: precision 'fp8'; expected one of fp32, fp16, bf16, auto.
    """

    precision: Precision = "fp32"
    error_bound: float | None = None
    samples: Mapping[str, Any] = field(default_factory=dict)
    half_io: bool = False
    wide_residuals: bool | None = None
    dims: Mapping[str, int | DimRange] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    cuda_graph: bool = True
    static_inputs: Collection[str] = ()
    in_place: Mapping[str, str] | Collection[str] = ()
    rewrite: Search = "search"
    allow: Collection[str] = ()
    fast_math: bool = False
    without: Collection[str] = ()
    workers: int = 1
    shards: Mapping[str, str] = field(default_factory=dict)
    dump: Path | None = None
    db: Path | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        for name, (types, wanted) in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise UserError(f"{name} is {value!r}", wanted)
        if self.precision not in PRECISIONS:
            raise UserError(f"precision {self.precision!r}", f"one of {', '.join(PRECISIONS)}")
        if self.precision != "auto" and (self.error_bound is not None or self.samples):
            option = "samples" if self.samples else "error_bound"
            raise UserError(f"{option} with precision {self.precision!r}", "precision 'auto'")
        if self.error_bound is not None and not self.error_bound >= 0:
            raise UserError(f"error_bound {self.error_bound}", "0 or more")
        for option in ("samples", "constants"):
            arrays = {name: np.asarray(value) for name, value in getattr(self, option).items()}
            object.__setattr__(self, option, arrays)
        wanted = "an int or a DimRange(low, high, step)"
        dims = {
            name: v
            if isinstance(v, DimRange)
            else whole_number(f"dims[{name!r}]", v, wanted=wanted)
            for name, v in self.dims.items()
        }
        object.__setattr__(self, "dims", dims)
        if self.rewrite not in SEARCHES:
            raise UserError(f"rewrite {self.rewrite!r}", f"one of {', '.join(SEARCHES)}")
        for option in ("allow", "without", "static_inputs", "in_place"):
            given = getattr(self, option)
            if option != "in_place" or not isinstance(given, Mapping):
                object.__setattr__(self, option, _names(option, given))
        for flag in self.allow:
            if flag not in FLAGS:
                raise unknown_name("flag", flag, FLAGS)
        object.__setattr__(self, "workers", whole_number("workers", self.workers, 1))
        if self.workers > _MOST_WORKERS:
            raise UserError(f"workers {self.workers!r}", f"1 to {_MOST_WORKERS}")
        for name, role in self.shards.items():
            if role not in ROLES:
                raise UserError(f"shards[{name!r}] is {role!r}", f"one of {', '.join(ROLES)}")
        for found, expected in self._contradictions():
            raise UserError(found, expected, "leave one of them out")
        for option in ("dump", "db"):
            if getattr(self, option) is not None:
                object.__setattr__(self, option, Path(getattr(self, option)))

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield options of which one leaves the other nothing to do, and what would be right."""
        if self.half_io and self.precision == "fp32":
            yield "half_io with precision fp32", "precision fp16 or bf16"
        if self.without and self.rewrite == "none":
            names = ", ".join(self.without)
            yield f"rewrite none without the rule {names}", "rewrite search or greedy"
        if self.shards and self.workers == 1:
            yield "shards of a model for 1 worker", "workers of at least 2"
        if self.static_inputs and not self.cuda_graph:
            needed = "cuda_graph, which alone reads them in place"
            yield "static_inputs without a CUDA graph", needed

    def for_kind(self, kind: str) -> FusionConfig:
        """Return the same with defaults that depend on TVM's target kind."""
        if self.wide_residuals is not None:
            return self
        return replace(self, wide_residuals=kind == "llvm")

    @property
    def writes(self) -> dict[str, str]:
        """By input that is written to, the output whose values it is to hold."""
        given = self.in_place
        return dict(given if isinstance(given, Mapping) else zip(given, given, strict=True))

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of laws that may be used."""
        return tuple(FLAGS) if self.fast_math else tuple(self.allow)


_FEW = 64  # numbers of a constant in a command


def command_options(config: FusionConfig) -> list[str]:
    """Write a config as the options of `tvm-fusion explain`, those that are not at their defaults.

    A constant of floats, of several axes or of many elements is a file named like its input.
    """
    words = []
    for name in ("precision", "rewrite"):
        if (value := getattr(config, name)) != getattr(FusionConfig, name):
            words += [f"--{name}", value]
    for name, dim in config.dims.items():
        words += ["--dim", f"{name}={dim.text if isinstance(dim, DimRange) else dim}"]
    for name, array in config.constants.items():
        is_short = array.ndim < 2 and array.dtype.kind in "iu" and 0 < array.size <= _FEW
        text = ",".join(map(str, array.flat)) if is_short else f"{name}.npy"
        words += ["--constant", f"{name}={text}"]
    for rule in config.without:
        words += ["--without-rule", rule]
    if config.workers > 1:
        words += ["--workers", str(config.workers)]
    for pattern, role in config.shards.items():
        words += ["--shard", f"{pattern}={role}"]
    if config.db:
        words += ["--db", str(config.db)]
    if config.fast_math:
        words.append("--fast-math")
    elif config.allow:
        words += ["--allow", ",".join(config.allow)]
    return [*words, "--half-io"] if config.half_io else words


class Options(TypedDict, total=False):
    """Fields of :class:`FusionConfig`, as keywords or in a dict."""

    precision: Precision
    error_bound: float | None
    samples: Mapping[str, Any]
    half_io: bool
    wide_residuals: bool | None
    dims: Mapping[str, int | DimRange]
    constants: Mapping[str, Any]
    cuda_graph: bool
    static_inputs: Collection[str]
    in_place: Mapping[str, str] | Collection[str]
    rewrite: Search
    allow: Collection[str]
    fast_math: bool
    without: Collection[str]
    workers: int
    shards: Mapping[str, str]
    dump: str | Path | None
    db: str | Path | None
    profile: str | None


Config = FusionConfig | Options


def configure(config: Config | None, options: Mapping[str, Any] | None = None) -> FusionConfig:
    """Make a config of what a user gave: a config or a dict, and single fields.

    Raises
    ------
    UserError
        For a name that is no option, with those that are near, and a value that it does not take.
    """
    if config is not None and not isinstance(config, FusionConfig | Mapping):
        raise UserError(f"config of type {type(config).__name__}", "a FusionConfig or a dict")
    whole = config if isinstance(config, FusionConfig) else FusionConfig()
    given = {**({} if isinstance(config, FusionConfig) else config or {}), **(options or {})}
    known = [one.name for one in fields(FusionConfig)]
    for name in given:
        if name not in known:
            raise unknown_name("option", str(name), known)
    return replace(whole, **given)


def _names(option: str, given: object) -> tuple[str, ...]:
    """Read several names; one string would otherwise be as many names as it has letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"{option} is {given!r}", "several names, as in ('a', 'b')")
    return tuple(dict.fromkeys(map(str, given)))


_DIGITS = 18  # of an extent, which TVM keeps in 64 bits


def parse_dims(texts: Iterable[str]) -> dict[str, int | DimRange]:
    """Read several ``--dim`` options.

    Raises
    ------
    UserError
        For a malformed option, and for a dimension that is named twice.
    """
    dims: dict[str, int | DimRange] = {}
    for text in texts:
        name, value = parse_dim(text)
        if name in dims:
            raise UserError(f"--dim {text!r} names {name!r} again", "one option a dimension")
        dims[name] = value
    return dims


def parse_dim(text: str) -> tuple[str, int | DimRange]:
    """Read ``name=4``, ``name=1..8`` or ``name=32..1024:32``, as the command line has it.

    Raises
    ------
    UserError
        For any other form, and for a range whose ends are in the wrong order.
    """
    name, _, value = text.rpartition("=")
    low, dots, rest = value.partition("..")
    high, colon, step = rest.partition(":")
    numbers = [low, *([high] if dots else []), *([step] if colon else [])]
    if not name or not all(n.isascii() and n.isdecimal() and len(n) <= _DIGITS for n in numbers):
        raise UserError(
            f"--dim {text!r}",
            "NAME=EXTENT, NAME=LOW..HIGH or NAME=LOW..HIGH:STEP, as in batch=1..8 or "
            "height=32..1024:32",
        )
    first, last = int(low), int(high or low)
    if first > last:
        raise UserError(f"--dim {text!r} allows no extent", "0 <= LOW <= HIGH")
    if not dots:
        return name, first
    given = DimRange(first, last, int(step) if colon else 1)
    return name, whole_steps(f"--dim {text!r}", given)


def whole_steps(option: str, given: DimRange) -> DimRange:
    """Return a range whose ends are multiples of its step, as its extents are.

    Raises
    ------
    UserError
        Where the step is not positive, or no multiple of it lies in the range.
    """
    if given.step < 1:
        raise UserError(f"{option} has steps of {given.step}", "a step of at least 1")
    low = -(-given.low // given.step) * given.step
    high = given.high // given.step * given.step
    if low > high:
        raise UserError(f"{option} allows no extent", f"a multiple of {given.step} in it")
    return DimRange(low, high, given.step)


def parse_constants(texts: Iterable[str]) -> dict[str, np.ndarray]:
    """Read several ``--constant`` options: ``axes=1``, ``shape=2,-1``, ``on=true``, ``k=k.npy``.

    Raises
    ------
    UserError
        For a malformed option, an input that is named twice, and a file that cannot be read.
    """
    found: dict[str, np.ndarray] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in found:
            raise UserError(f"--constant {text!r} names {name!r} again", "one option an input")
        if not name or not value:
            raise UserError(f"--constant {text!r}", _CONSTANT)
        found[name] = _numbers(text, value)
    return found


_CONSTANT = "NAME=NUMBER, NAME=NUMBER,NUMBER,... or NAME=FILE.npy, as in axes=0,2"


def _numbers(text: str, value: str) -> np.ndarray:
    if value.endswith(".npy"):
        refuse_lfs_pointer(value)
        try:
            return np.load(value, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            found = f"{value!r} cannot be read"
            raise UserError(found, "a numpy .npy file of numbers") from error
    try:
        numbers = json.loads(value if "[" in value else f"[{value}]")
        if not numbers or any(not isinstance(n, (bool, int, float)) for n in numbers):
            raise ValueError(value)
        is_scalar = len(numbers) == 1 and "[" not in value
        return np.asarray(numbers[0] if is_scalar else numbers)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"--constant {text!r}", _CONSTANT) from error
