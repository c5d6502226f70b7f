"""Dimensions that are multiples of a step: ``h`` in steps of 32 is ``32*k`` inside the module.

Extents of the levels of a pyramid, ``h``, ``16*k`` doubled and ``8*k`` doubled twice, are then
equal by arithmetic alone, in every pass, and kernels know what divides them. A Relax function
learns its variables from extents that are variables, so one further parameter, a shape, defines the
numbers of steps until the function is lowered (:mod:`tvm_fusion.deploy.build.lower`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax, tirx

from ..._tvm.ir.symbolic import substitute
from ...core.tir.whole_extents import STEPS
from ...core.untouched import is_rewritable
from ...signature import DimRange, Signature, TensorSpec
from .extents import to_tir

_PARAMETER = "numbers_of_steps"
_NAME = re.compile(r"\b[A-Za-z_]\w*")


@dataclass(frozen=True)
class Steps:
    """The dimensions of a model that are multiples of a step."""

    variables: dict[str, Any] = field(default_factory=dict)  # by dimension, its number of steps
    ranges: dict[str, DimRange] = field(default_factory=dict)  # by dimension, as the user gave it

    @staticmethod
    def among(ranges: Mapping[str, DimRange]) -> Steps:
        """Make variables for the ranges that have a step."""
        stepped = {name: r for name, r in ranges.items() if r.step > 1}
        names: dict[str, str] = {}
        for name, given in stepped.items():
            wish = f"{name}_by_{given.step}"
            while wish in {*ranges, *names.values()}:
                wish += "_"
            names[name] = wish
        return Steps({name: tirx.Var(names[name], "int64") for name in stepped}, stepped)

    def extent(self, name: str) -> Any:
        """Return a dimension as the module has it."""
        return self.variables[name] * tirx.IntImm("int64", self.ranges[name].step)

    def inner(self, ranges: Mapping[str, DimRange]) -> dict[str, DimRange]:
        """Return the ranges of the variables in the module, by their names."""
        return dict(self._inner(name, given) for name, given in ranges.items())

    def _inner(self, name: str, given: DimRange) -> tuple[str, DimRange]:
        if name not in self.variables:
            return name, given
        return self.variables[name].name, DimRange(
            given.low // given.step, given.high // given.step
        )

    def parameter(self) -> Any:
        """Make the parameter that defines the variables; None where there are none."""
        variables = list(self.variables.values())
        return relax.Var(_PARAMETER, relax.ShapeType(variables)) if variables else None

    def attribute(self) -> dict[str, list[Any]]:
        """Return what a function says of its variables."""
        return {
            variable.name: [name, self.ranges[name].step]
            for name, variable in self.variables.items()
        }

    def marked(self, mod: tvm.IRModule, function: str = "main") -> tvm.IRModule:
        """Say it of a function that has the parameter."""
        if self.variables:
            mod[function] = mod[function].with_attr(STEPS, self.attribute())
        return mod

    def bound(self, mod: tvm.IRModule) -> tvm.IRModule:
        """Write the dimensions of a whole module as multiples, and add the parameters."""
        if not self.variables:
            return mod
        mod = mod.clone()
        for gvar, func in list(mod.functions.items()):
            if not is_rewritable(func):
                continue
            own = {var.name for var in relax.analysis.defined_symbolic_vars(func)}
            used = [name for name in self.variables if name in own]
            if not used:
                continue
            part = Steps(
                {n: tirx.Var(self.variables[n].name, "int64") for n in used},
                {n: self.ranges[n] for n in used},
            )
            mod[gvar] = part._with_parameter(func)
        return mod

    def _with_parameter(self, func: relax.Function) -> relax.Function:
        func = substitute(func, {name: self.extent(name) for name in self.variables})
        count = int((func.attrs or {}).get("num_input", len(func.params)))
        params = [*func.params[:count], self.parameter(), *func.params[count:]]
        attrs = dict(func.attrs or {}) | {STEPS: self.attribute()}
        if "num_input" in attrs:
            attrs["num_input"] = count + 1
        made = relax.Function(params, func.body, func.ret_ty, func.is_pure)
        return made.with_attrs(attrs)

    def in_dims(self, signature: Signature) -> Signature:
        """Write a signature over the dimensions instead of the numbers of steps."""

        def spec(given: TensorSpec) -> TensorSpec:
            return replace(given, shape=tuple(map(self._whole, given.shape)))

        if not self.variables:
            return signature
        equal = (
            replace(pair, one=str(self._whole(pair.one)), other=str(self._whole(pair.other)))
            for pair in signature.equal
        )
        return Signature(
            tuple(map(spec, signature.inputs)), tuple(map(spec, signature.outputs)), tuple(equal)
        )

    def _whole(self, extent: int | str) -> int | str:
        steps = {self.variables[name].name: name for name in self.variables}
        if isinstance(extent, int) or not steps.keys() & set(_NAME.findall(extent)):
            return extent
        names = set(_NAME.findall(extent)) - {"max", "min"}
        if len(names) == 1:
            (variable,) = names
            whole = steps[variable]
            short = self._linear(extent, variable, whole)
            if short is not None:
                return short

        def written(match: re.Match[str]) -> str:
            whole = steps.get(match[0])
            return match[0] if whole is None else f"({whole}//{self.ranges[whole].step})"

        return _NAME.sub(written, extent)

    def _linear(self, extent: str, variable: str, whole: str) -> str | None:
        """Write ``16*k + 1`` of 32 * k = h as ``h//2+1``; None for what is not linear."""
        try:
            values = [to_tir(extent, {variable: k}) for k in range(8)]
        except (ValueError, KeyError):
            return None
        offset, factor, step = values[0], values[1] - values[0], self.ranges[whole].step
        if factor < 1 or values != [offset + factor * k for k in range(8)] or "//" in extent:
            return None
        if factor % step == 0:
            text = whole if factor == step else f"{whole}*{factor // step}"
        elif step % factor == 0:
            text = f"{whole}//{step // factor}"
        else:
            text = f"{whole}//{step}*{factor}"
        return text if not offset else f"{text}+{offset}" if offset > 0 else f"{text}{offset}"
