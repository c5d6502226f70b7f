"""What each launch computes, by the user's names, and which launches wrote what it reads.

Lowering makes ``call_tir`` an allocation and a call that binds nothing, and drops spans. The calls
stay in their order, though, so the variables that they bind get the names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, relax, tirx
from tvm.ir.transform import PassContext

from ...core.names.source import (
    Sources,
    bindings_of,
    names_of,
    operands_of,
    sources_of,
    with_sources,
)
from ...core.untouched import is_rewritable


@tvm.transform.module_pass(opt_level=0, name="CallTIRRewriteWithNames")
class CallTIRRewriteWithNames:
    """Run TVM's CallTIRRewrite; the variables of calls get the names of what they compute."""

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Apply to every rewritable function."""
        before = {
            gvar.name_hint: [(name, _sources(binding)) for binding, name in _calls(mod, func)]
            for gvar, func in mod.functions.items()
            if is_rewritable(func)
        }
        mod = relax.transform.CallTIRRewrite()(mod)
        for gvar, func in list(mod.functions.items()):
            given = before.get(gvar.name_hint)
            if given and any(sources for _, sources in given):
                calls = list(_calls(mod, func))
                if [name for name, _ in given] == [name for _, name in calls]:
                    pairs = zip(calls, given, strict=True)
                    found = {call[0].var: sources for call, (_, sources) in pairs if sources}
                    mod.update_func(gvar, with_sources(func, found))
        return mod


@dataclass(frozen=True)
class Launch:
    """A call of a PrimFunc."""

    kernel: str  # its name
    names: tuple[str, ...]  # what the user calls the operators that it computes
    # Positions of the launches that wrote what it reads; of those of the same Relax function.
    reads: tuple[int, ...]


def launches_of(mod: tvm.IRModule, function: str) -> list[Launch]:
    """List the PrimFuncs that a function calls, in order.

    Parameters
    ----------
    mod
        Lowered for the virtual machine.
    function
        A Relax function; the calls of those that it calls (captured in CUDA graphs, branches,
        bodies of loops) stand where it names them first, those of a body once.
    """
    found: list[Launch] = []
    done: set[str] = set()

    def visit(name: str) -> None:
        done.add(name)
        # By variable, the launches that wrote its tensor. A call gets the tensors that it writes as
        # arguments: of those that are allocated, the ones that no call before has had.
        writers: dict[relax.Var, tuple[int, ...]] = {}
        for binding in bindings_of(mod[name].body):
            operands = [x for x in operands_of(binding.value) if isinstance(x, relax.Var)]
            before = tuple(dict.fromkeys(i for x in operands for i in writers.get(x, ())))
            writers[binding.var] = before  # a view or a part of what it is made from
            for kernel in _named(binding.value):
                called = mod.functions.get(kernel)
                if isinstance(called, tirx.PrimFunc):
                    if not _is_host(called):
                        fresh = {x: (len(found),) for x in operands if writers.get(x) == ()}
                        writers.update(fresh)
                        found.append(Launch(kernel.name_hint, names_of(_sources(binding)), before))
                elif isinstance(called, relax.Function) and kernel.name_hint not in done:
                    visit(kernel.name_hint)

    visit(function)
    return found


def _calls(mod: tvm.IRModule, func: Any) -> Iterator[tuple[Any, str]]:
    """Yield the bindings that call PrimFuncs, with these names."""
    for binding in bindings_of(func.body):
        for kernel in _named(binding.value):
            if isinstance(mod.functions.get(kernel), tirx.PrimFunc):
                yield binding, kernel.name_hint
                break


def _named(value: Any) -> list[ir.GlobalVar]:
    """List the functions that a call calls or passes to what calls them."""
    if not isinstance(value, relax.Call):
        return []
    if isinstance(value.op, ir.GlobalVar):
        return [value.op]
    found = [
        x
        for arg in value.args
        for x in (arg.fields if isinstance(arg, relax.Tuple) else [arg])
        if isinstance(x, ir.GlobalVar)
    ]
    return found


def _sources(binding: Any) -> Sources:
    return sources_of(binding.value) or sources_of(binding.var)


def _is_host(func: tirx.PrimFunc) -> bool:
    """Whether a function computes extents for the virtual machine."""
    return bool(func.attrs and func.attrs.get("tirx.is_host_func", False))
