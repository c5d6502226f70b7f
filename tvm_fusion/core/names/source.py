"""The user's names of operators: which operators of the model a variable's value comes from.

A variable of a Relax function carries them as its span (``Var.span``): spans stay where passes keep
or retype variables, structural equality and hashes pass over them, and printed modules do not show
them. So names change neither kernels nor what is shared between equal layers. Importers attach them
(:class:`Recorder`); a stage whose passes make new variables ends in
:func:`tvm_fusion.core.names.inherit.inheriting`, the one place where new operators get the names of
those that they replace. The call of a group, which has one variable for all of its operators, has
all of their names in its own span (``Call.span``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, relax

from ..untouched import is_rewritable

MOST = 64  # sources of one operator: so that names take linear time and space, whatever is merged
# ASCII's own separators: before every source, and between the names of one. Spans that begin with
# no separator are others', such as the places in a file that TVMScript's parser gives.
_BETWEEN, _WITHIN = "\x1e", "\x1f"
_WITHOUT_SEPARATORS = {ord(_BETWEEN): None, ord(_WITHIN): None}


@dataclass(frozen=True)
class Source:
    """An operator of the model, as its user knows it."""

    # Name of an ONNX node, or path of the PyTorch module that calls it
    # (``encoder.layer.3.attention``); empty where there is none.
    operator: str
    # Names of its results: ONNX's tensors, nodes of a ``torch.export`` graph, variables of a Relax
    # module.
    tensors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to call it: the operator's name, else that of its first result."""
        return self.operator or next(iter(self.tensors), "")


Sources = tuple[Source, ...]


def sources_of(expr: Any) -> Sources:
    """Read the sources of a variable, or of the call of a group.

    Returns
    -------
    tuple of Source
        Without duplicates; empty where nothing is known.
    """
    span = getattr(expr, "span", None)
    return () if span is None else _decoded(str(span.source_name.name))


def names_of(sources: Iterable[Source]) -> tuple[str, ...]:
    """Name sources, each once."""
    return tuple(dict.fromkeys(source.name for source in sources if source.name))


def names_of_callees(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    """Map functions, by name, to the user's names of what their calls compute.

    Equal layers call one function, whose names are those of all layers, :data:`MOST` at most.
    """
    calls: dict[str, list[Sources]] = {}
    for func in mod.functions.values():
        if is_rewritable(func):
            for binding in bindings_of(func.body):
                value = binding.value
                called = getattr(value, "op", None)
                if isinstance(called, ir.Op) and value.args:  # call_tir
                    called = value.args[0]
                if isinstance(called, ir.GlobalVar):
                    own = sources_of(value) or sources_of(binding.var)
                    calls.setdefault(called.name_hint, []).append(own)
    return {name: names_of(joined(several)) for name, several in calls.items()}


def joined(several: Iterable[Sources]) -> Sources:
    """Join sources in order, each once, at most :data:`MOST`."""
    unique = dict.fromkeys(source for sources in several for source in sources)
    return tuple(islice(unique, MOST))


@lru_cache(maxsize=1 << 14)
def span_of(sources: Sources) -> ir.Span | None:
    """Make the span that carries sources; None for none."""
    if not sources:
        return None
    texts = (_WITHIN.join((_plain(s.operator), *map(_plain, s.tensors))) for s in sources)
    return ir.Span(ir.SourceName(_BETWEEN + _BETWEEN.join(texts)), 0, 0, 0, 0)


@lru_cache(maxsize=1 << 14)
def _decoded(text: str) -> Sources:
    if not text.startswith(_BETWEEN):
        return ()
    parts = (part.split(_WITHIN) for part in text[1:].split(_BETWEEN))
    return tuple(Source(operator, tuple(tensors)) for operator, *tensors in parts)


def _plain(name: str) -> str:
    return name.translate(_WITHOUT_SEPARATORS)


def bindings_of(body: Any) -> Iterator[Any]:
    """Yield the bindings of a function's body in order, those of branches before their ``If``."""
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, relax.If):
                yield from bindings_of(binding.value.true_branch)
                yield from bindings_of(binding.value.false_branch)
            elif isinstance(binding.value, relax.Function):
                yield from bindings_of(binding.value.body)
            yield binding


def operands_of(value: Any) -> list[Any]:
    """List what a binding's value reads: tuples by their fields, those in tuples among them."""
    if isinstance(value, relax.Call):
        return [x for arg in value.args for x in operands_of(arg)]
    if isinstance(value, relax.Tuple):
        return [x for field in value.fields for x in operands_of(field)]
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, relax.If):
        ends = (value.cond, value.true_branch.body, value.false_branch.body)
        return [x for end in ends for x in operands_of(end)]
    return [value]


def with_sources(func: relax.Function, found: Mapping[Any, Sources]) -> relax.Function:
    """Write a function over variables that carry sources.

    Parameters
    ----------
    found : mapping of relax.Var to tuple of Source
        Variables that the function binds, with all of their sources.

    Returns
    -------
    tvm.relax.Function
        Structurally equal to the one given.
    """
    new = {
        hash(var): type(var)(var.name, var.ty, span_of(sources)) for var, sources in found.items()
    }
    return tvm_ffi.structural_map(func, (ir.Var, lambda var: new.get(hash(var), var)))


class Recorder:
    """What importers tell of the values that they make, until the module is there to carry it."""

    def __init__(self) -> None:
        self._sources: dict[int, Source] = {}
        self._kept: list[Any] = []  # whose hashes must not be those of other objects

    def add(self, values: Iterable[Any], operator: str, tensors: Iterable[str]) -> None:
        """Note what values come from; what is none of Relax's calls or variables is passed over."""
        source = Source(operator, tuple(tensors))
        for value in values:
            is_bound = isinstance(value, relax.Call | relax.Tuple | relax.Var | relax.TupleGetItem)
            if is_bound and hash(value) not in self._sources:
                self._sources[hash(value)] = source
                self._kept.append(value)

    def of(self, binding: Any) -> Sources:
        """Return what is noted of a binding."""
        found = self._sources.get(hash(binding.var)) or self._sources.get(hash(binding.value))
        return () if found is None else (found,)


def attach(mod: tvm.IRModule, told: Callable[[Any], Sources]) -> tvm.IRModule:
    """Attach sources to the variables of all rewritable functions.

    What is not told comes from the operator that reads it first: importers write an operator as
    several, and tell the last. What none reads comes from what it reads, or else from what follows.

    Parameters
    ----------
    told
        Returns what is known of a binding, if anything.

    Returns
    -------
    tvm.IRModule
        Structurally equal to the one given.
    """
    mod = mod.clone()
    for gvar, func in list(mod.functions.items()):
        if is_rewritable(func):
            found = _of_function(list(bindings_of(func.body)), told)
            if found:
                mod.update_func(gvar, with_sources(func, found))
    return mod


def _of_function(bindings: list[Any], told: Callable[[Any], Sources]) -> dict[Any, Sources]:
    known: dict[int, Sources] = {}
    read: dict[int, Sources] = {}  # by the reader that is the first so far
    follows: dict[int, Sources] = {}
    after: Sources = ()
    for binding in reversed(bindings):
        at = hash(binding.var)
        own = sources_of(binding.var) or told(binding) or read.get(at, ())
        known[at], follows[at], after = own, after, own or after
        if own:
            for operand in operands_of(binding.value):
                if isinstance(operand, relax.Var):
                    read[hash(operand)] = own
    found: dict[Any, Sources] = {}
    for binding in bindings:
        at = hash(binding.var)
        if not known[at]:
            before = (known.get(hash(operand), ()) for operand in operands_of(binding.value))
            known[at] = next(filter(None, before), follows[at])
        if known[at] and not sources_of(binding.var):
            found[binding.var] = known[at]
    return found
