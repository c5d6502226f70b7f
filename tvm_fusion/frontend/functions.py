"""Several models as the functions of one module, with equal constants once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax

from ..config import FusionConfig
from ..core.constants.numpy_types import array_of
from ..core.constants.weight_names import constants
from ..errors import UserError
from ..signature import DimRange, Signature
from . import Imported, import_model
from .dimensions.symbolic import of_several_models

_SAMPLED = 1024  # bytes of a constant that are looked at before all of them


def import_models(models: Mapping[str, Any], config: FusionConfig) -> Imported:
    """Import models as functions of one module; parameters as of :func:`import_model`.

    Parameters
    ----------
    models : mapping of str to model
        By the name of the function that each becomes. A dimension of one name is the same in all.

    Returns
    -------
    Imported
        Constants of equal elements are one object, named as by the first model that names it.

    Raises
    ------
    UserError
        For a name that is no identifier, a model of several functions, and a dimension whose range
        depends on the model.
    """
    _check(models, config)
    merged = _Merged()
    with of_several_models(config.dims):
        for name, model in models.items():
            merged.add(name, import_model(model, config))
    return merged.imported()


def _check(models: Mapping[str, Any], config: FusionConfig) -> None:
    if not models:
        raise UserError("no models", "at least one, by the name of its function")
    for name in models:
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"a function called {name!r}", "a name such as 'decode'")
    if config.constants:
        raise UserError(
            "constants for several models",
            "models whose constant inputs are constants already",
            "make the values constants of the model that has them",
        )


class _Merged:
    """Functions of the models so far."""

    def __init__(self) -> None:
        self._functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
        self._taken: set[str] = set()
        self._signatures: dict[str, Signature] = {}
        self._dims: dict[str, DimRange] = {}
        self._dims_of: dict[str, str] = {}  # by dimension, the first model that has it
        self._weight_names: dict[ir.GenericConst, str] = {}
        self._sources: dict[str, str] = {}
        self._known: dict[Any, list[ir.GenericConst]] = {}
        self._attrs: dict[str, Any] = {}

    def add(self, name: str, imported: Imported) -> None:
        """Add a model as a function."""
        if len(imported.signatures) != 1:
            found = ", ".join(imported.signatures) or "none from tensors to tensors"
            raise UserError(
                f"the model {name!r} has the functions {found}",
                "one function for each model",
                "give an IRModule of several functions by itself",
            )
        ((public, signature),) = imported.signatures.items()
        self._add_dims(name, imported.dims)
        mod = imported.mod
        shared = self._shared(mod)
        renamed = {gvar: self._fresh(gvar, public, name) for gvar in mod.functions}

        for gvar, func in mod.functions.items():
            rules = [
                (ir.GlobalVar, lambda g: renamed.get(g, g)),
                (ir.GenericConst, lambda c: shared.get(c, c)),
            ]
            func = tvm_ffi.structural_map(func, rules, order="post")
            if func.attrs and "global_symbol" in func.attrs:
                func = func.with_attr("global_symbol", renamed[gvar].name_hint)
            self._functions[renamed[gvar]] = func
        for const, weight in imported.weight_names.items():
            self._weight_names.setdefault(shared.get(const, const), weight)
        self._signatures[name] = signature
        self._sources[name] = imported.source
        self._attrs = {**(mod.attrs or {}), **self._attrs}

    def imported(self) -> Imported:
        """Return the module of all functions."""
        mod = tvm.IRModule(self._functions, attrs=self._attrs or None)
        source = ", ".join(f"{name}: {source}" for name, source in self._sources.items())
        return Imported(mod, self._signatures, self._dims, self._weight_names, source)

    def _add_dims(self, name: str, dims: Mapping[str, DimRange]) -> None:
        for dim, extents in dims.items():
            known = self._dims.setdefault(dim, extents)
            first = self._dims_of.setdefault(dim, name)
            if known != extents:
                raise UserError(
                    f"dimension {dim} is {known.sentence} in {first!r} and {extents.sentence} in "
                    f"{name!r}",
                    "one range for each name",
                    f"give it as dims={{{dim!r}: DimRange(...)}}, or rename one of them",
                )

    def _fresh(self, gvar: ir.GlobalVar, public: str, name: str) -> ir.GlobalVar:
        """Make the variable of a function: the public one is called as the user says."""
        wish = name if gvar.name_hint == public else gvar.name_hint
        fresh, number = wish, 1
        while fresh in self._taken or (fresh != name and fresh in self._signatures):
            fresh, number = (
                f"{wish}_{name}_{number}" if number > 1 else f"{wish}_{name}",
                number + 1,
            )
        self._taken.add(fresh)
        new = ir.GlobalVar(fresh)
        relax.expr._update_type(new, gvar.ty)
        return new

    def _shared(self, mod: tvm.IRModule) -> dict[ir.GenericConst, ir.GenericConst]:
        """Map constants to those of the models before that hold the same bits."""
        shared: dict[ir.GenericConst, ir.GenericConst] = {}
        for const in constants(mod):
            if not isinstance(const.ty, relax.TensorType):
                continue
            bits = _bits(const)
            sample = bits[:: (bits.size // _SAMPLED) | 1].tobytes()
            alike = self._known.setdefault((str(const.ty), sample), [])
            found = next((c for c in alike if np.array_equal(_bits(c), bits)), None)
            if found is None:
                alike.append(const)
            else:
                shared[const] = found
        return shared


def _bits(const: ir.GenericConst) -> np.ndarray:
    """Return a tensor's bytes, without a copy where numpy has its type."""
    return np.ascontiguousarray(array_of(const.value)).reshape(-1).view(np.uint8)
