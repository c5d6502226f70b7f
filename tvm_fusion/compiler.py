"""The main job: a model in, an artifact out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from typing import Any

from ._tvm_errors import register_errors
from ._tvm_fork import has_run_kernels
from .config import FusionConfig
from .deploy import manifest
from .deploy.artifact import Artifact, check_writable
from .device import TargetSpec, parse
from .device.probe import machine
from .errors import UserError
from .fusion.decisions import recording
from .signature import Signature
from .threads import choose_threads

register_errors()


def compile(  # the public name, as in tvm.compile
    model: Any, target: Any = "cpu", config: FusionConfig | None = None, **options: Any
) -> Artifact:
    """Compile a model.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file.
    target : str, dict or tvm.target.Target
        ``"cpu"`` (this machine), ``"cpu:x86-64-v3"``, ``"cuda:sm_80,sm_90a"``, ``"rocm:gfx942"``;
        see :func:`tvm_fusion.device.parse`.
    config : FusionConfig, optional
        What to choose.
    **options
        Fields of :class:`FusionConfig`, one by one.

    Returns
    -------
    Artifact
        Export it to a folder; :func:`tvm_fusion.load` runs it.

    Raises
    ------
    UserError
        For a model, target or option that cannot be compiled, and for missing tools.
    """
    from .deploy.toolchain import toolchain

    start = time.perf_counter()
    config = _configure(config or FusionConfig(), options)
    spec = parse(target)
    with toolchain(spec), recording() as decisions:
        import tvm

        from .deploy.build import build, export_library
        from .deploy.dump import Dump
        from .deploy.in_place import update_in_place
        from .deploy.static_inputs import mark_static_inputs
        from .frontend import import_model
        from .frontend.weights import WeightNames, tracking
        from .fusion.claims import remembering
        from .pipeline import stages

        passes = stages(config)
        imported = import_model(model, config)
        if config.dump is not None:
            passes.insert(0, Dump(config.dump / "0_frontend.py"))
        context = tvm.transform.PassContext(
            config={"relax.backend.use_cuda_graph": config.cuda_graph}
        )
        if not imported.signatures:
            raise UserError(
                f"{imported.source} has no function from tensors to tensors",
                advice="give it one, such as main, whose parameters and results are tensors",
            )
        choose_threads()
        has_run_kernels()  # evaluates constants
        names = WeightNames((name, const) for const, name in imported.weight_names.items())
        with spec.tvm_target(), context, tracking(names), remembering():
            mod = update_in_place(imported.mod, imported.signatures, config.writes)
            mod = tvm.ir.transform.Sequential(passes)(mod)
            static_inputs = {*config.static_inputs, *config.in_place}
            mod = mark_static_inputs(mod, imported.signatures, static_inputs)
            built = build(mod, spec, list(imported.signatures), imported.dims, names)
    functions = {
        name: {
            **manifest.signature_to_json(signature),
            "weights": built.weight_names.get(name, []),
            "in_place": _in_place(signature, config.writes),
            "destinations": [signature.outputs[i].name for i in built.destinations[name]],
            **built.counts[name],
        }
        for name, signature in imported.signatures.items()
    }
    content = {
        "schema": manifest.SCHEMA,
        "versions": {
            name: version(name) for name in ("tvm_fusion", "apache-tvm", "apache-tvm-ffi")
        },
        "source": imported.source,
        "target": _describe(spec),
        "precision": config.precision,
        "alignment": "element",
        "dims": {n: {"min": r.low, "max": r.high} for n, r in imported.dims.items()},
        "functions": functions,
        "decisions": [asdict(d) for d in decisions if d.verdict != "accepted"],
    }
    return Artifact(
        content,
        built.weights,
        {n: {"function": p.function, "shape": list(p.shape)} for n, p in built.packings.items()},
        lambda path: export_library(built.compiled, spec, path),
        time.perf_counter() - start,
    )


def _in_place(signature: Signature, names: Mapping[str, str]) -> dict[str, str]:
    """List a function's inputs that it writes to, with their outputs."""
    return {spec.name: names[spec.name] for spec in signature.inputs if spec.name in names}


def _configure(config: FusionConfig, options: dict[str, Any]) -> FusionConfig:
    known = [field.name for field in fields(FusionConfig)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UserError(f"unknown option {unknown[0]!r}", f"one of {', '.join(known)}")
    config = replace(config, **options)
    if config.dump is not None:
        check_writable(config.dump)
    return config


def _describe(spec: TargetSpec) -> dict[str, Any]:
    """Write a target as the manifest has it."""
    described: dict[str, Any] = {"text": spec.text, "kind": spec.kind, "archs": list(spec.archs)}
    if spec.kind == "llvm":
        described["machine"] = spec.triple.split("-")[0] if spec.triple else machine()
        described["features"] = list(spec.device.features)
    return described
