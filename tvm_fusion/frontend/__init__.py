"""Import a model as one Relax module: read, check, convert, name its dimensions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import STORED, FusionConfig
from ..errors import UserError
from ..signature import DimRange, Signature
from .program_file import is_program_file, load_program

if TYPE_CHECKING:
    import tvm
    from tvm import ir

__all__ = ["Imported", "import_model"]


@dataclass(frozen=True)
class Imported:
    """A model as the stages after the frontend take it."""

    # Relax functions made of dataflow blocks, weights inside as constants; parameters carry the
    # names of the model's inputs.
    mod: tvm.IRModule
    signatures: dict[str, Signature]  # by public function, ``main`` first; symbolic extents by name
    dims: dict[str, DimRange]  # the dimensions that stayed symbolic
    # For every constant object in ``mod`` whose origin is known, its name in the model; one that a
    # pass derived says so, as in ``permute_dims(fc.weight)``.
    weight_names: dict[ir.GenericConst, str]
    # Where the model came from: a file's name, ``ModelProto``, ``ExportedProgram``, ``IRModule``.
    source: str


def import_model(model: Any, config: FusionConfig | None = None) -> Imported:
    """Read a model, check all of it, and import it into Relax.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file or of one of ``torch.export.save``.
    config
        ``dims``, ``constants`` and ``precision`` are used here.

    Returns
    -------
    Imported
        The normalised module and what is known about it.

    Raises
    ------
    UserError
        When the model cannot be read or holds something unsupported: everything that is wrong with
        it in one sentence, before any work is done.
    """
    config = config or FusionConfig()
    if config.precision not in STORED:
        raise UserError(
            f"precision {config.precision!r}",
            f"one of {', '.join(STORED)}",
            "only a compilation chooses one, and says which",
        )
    if isinstance(model, (str, os.PathLike)):
        if is_program_file(model):
            return _from_program(load_program(model), config, Path(model).name)
        from .onnx import from_file

        return from_file(model, config)
    # By the types' names, so that no framework is imported that the model does not come from.
    origin = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(model).__mro__}
    if ("onnx", "ModelProto") in origin:
        from .onnx import from_model_proto

        return from_model_proto(model, config)
    if ("torch", "ExportedProgram") in origin:
        return _from_program(model, config, "ExportedProgram")
    _refuse_constants(type(model).__name__, config)
    # What TVMScript makes of a class that may hold Python functions.
    if ("tvm", "ModuleFactory") in origin:
        return import_model(model.ir_module, config)
    if ("tvm", "BasePyModule") in origin:
        return import_model(model.ir_mod, config)
    if ("tvm", "IRModule") in origin:
        from .relax import from_module

        return from_module(model, config)
    raise UserError(
        f"a model of type {type(model).__name__}",
        "an ONNX or .pt2 file, a ModelProto, a torch.export.ExportedProgram or a Relax IRModule",
        "export it by torch.export.export(model.eval(), inputs)"
        if ("torch", "Module") in origin
        else None,
    )


def _from_program(program: Any, config: FusionConfig, source: str) -> Imported:
    from .torch_program.importer import from_exported_program

    _refuse_constants("ExportedProgram", config)
    return from_exported_program(program, config, source)


def _refuse_constants(kind: str, config: FusionConfig) -> None:
    if config.constants:
        raise UserError(
            f"constants of a model of type {kind}",
            "constants of an ONNX model's inputs",
            "make the value a constant of the model",
        )
