"""What a user can choose about a compilation; the fields are the command line's options."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from .core.flags import FLAGS, SEARCHES, Search
from .errors import UserError
from .signature import DimRange

Precision = Literal["fp32", "fp16", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_LISTED = 12  # names in a sentence


@dataclass(frozen=True)
class FusionConfig:
    """Options of one compilation.

    Attributes
    ----------
    precision : {"fp32", "fp16", "bf16"}
        Storage type of activations and weights. Sums, norms and softmax stay in float32.
    half_io : bool
        Let inputs and outputs take ``precision`` too; by default they keep the model's dtypes.
    dims : mapping of str to (int or DimRange)
        Binds a symbolic dimension of the model to an extent, or keeps it symbolic within a range.
    cuda_graph : bool
        On CUDA, let all launches of a function of static shapes be one CUDA graph.
    static_inputs : collection of str
        Inputs that lie at the same addresses in every call, such as caches: a CUDA graph reads them
        where they are instead of copies. At other addresses it is captured again, which is slow.
    in_place : mapping of str to str, or collection of str
        Inputs that are written to, with the outputs whose values they are to hold; names alone
        stand for both. See :mod:`tvm_fusion.deploy.in_place`.
    rewrite : {"search", "greedy", "none"}
        How equal forms of the graph are found: by a search with the planner's cost, by DNNFusion's
        rule that saves most operations, or not at all.
    allow : collection of str
        Laws and arithmetic outside floating point's promise that may be used: names of
        :data:`tvm_fusion.core.flags.FLAGS`.
    fast_math : bool
        Allow all of them.
    without : collection of str
        Rules that may not be used, by name: laws, recompositions, ``join_matmuls``.
    dump : str or Path, optional
        Folder to write one re-loadable TVMScript file into after every stage.
    """

    precision: Precision = "fp32"
    half_io: bool = False
    dims: Mapping[str, int | DimRange] = field(default_factory=dict)
    cuda_graph: bool = True
    static_inputs: Collection[str] = ()
    in_place: Mapping[str, str] | Collection[str] = ()
    rewrite: Search = "search"
    allow: Collection[str] = ()
    fast_math: bool = False
    without: Collection[str] = ()
    dump: Path | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UserError(f"precision {self.precision!r}", f"one of {', '.join(PRECISIONS)}")
        for name, value in self.dims.items():
            if not isinstance(value, int | DimRange):
                raise UserError(f"dims[{name!r}] is {value!r}", "an int or a DimRange(low, high)")
        if self.rewrite not in SEARCHES:
            raise UserError(f"rewrite {self.rewrite!r}", f"one of {', '.join(SEARCHES)}")
        object.__setattr__(self, "allow", _names("allow", self.allow))
        object.__setattr__(self, "without", _names("without", self.without))
        static_inputs = _names("static_inputs", self.static_inputs)
        object.__setattr__(self, "static_inputs", static_inputs)
        if not isinstance(self.in_place, Mapping):
            object.__setattr__(self, "in_place", _names("in_place", self.in_place))
        for flag in self.allow:
            if flag not in FLAGS:
                raise unknown_name("flag", flag, FLAGS)
        if self.dump is not None:
            object.__setattr__(self, "dump", Path(self.dump))

    @property
    def writes(self) -> dict[str, str]:
        """By input that is written to, the output whose values it is to hold."""
        given = self.in_place
        return dict(given if isinstance(given, Mapping) else zip(given, given, strict=True))

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of laws that may be used."""
        return tuple(FLAGS) if self.fast_math else tuple(self.allow)


def _names(option: str, given: object) -> tuple[str, ...]:
    """Read several names; one string would otherwise be as many names as it has letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"{option} is {given!r}", "several names, as in ('a', 'b')")
    return tuple(dict.fromkeys(map(str, given)))


def unknown_name(kind: str, name: str, known: Collection[str]) -> UserError:
    """Say that a name is none of those that there are, and which are near."""
    near = difflib.get_close_matches(name, known, 3, 0.5) or sorted(known)
    more = ["..."] if len(near) > _LISTED else []
    return UserError(
        f"there is no {kind} {name!r}", f"one of {', '.join([*near[:_LISTED], *more])}"
    )


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
    """Read ``name=4`` or ``name=1..8``, as the command line has it.

    Raises
    ------
    UserError
        For any other form, and for empty or non-positive ranges.
    """
    name, _, value = text.rpartition("=")
    low, dots, high = value.partition("..")
    if not name or not low.isdecimal() or (dots and not high.isdecimal()):
        raise UserError(f"--dim {text!r}", "NAME=EXTENT or NAME=LOW..HIGH, as in batch=1..8")
    first, last = int(low), int(high or low)
    if not 1 <= first <= last:
        raise UserError(f"--dim {text!r} allows no extent", "1 <= LOW <= HIGH")
    return name, DimRange(first, last) if dots else first
