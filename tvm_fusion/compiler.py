"""The main job: a model in, an artifact out."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._tvm.errors import register_errors, telling_of_large_extents
from ._tvm.fork import has_run_kernels
from .config import Config, FusionConfig, Options, Precision, command_options, configure
from .core.contract.kernel_info import Infos, collecting
from .core.decisions import Decision, record, recording
from .core.progress import report
from .deploy.build.artifact import AT, Artifact, check_writable
from .deploy.cache.folder import ArtifactCache
from .deploy.cache.key import cache_key
from .deploy.runtime.artifact import manifest
from .deploy.runtime.artifact.signature import dims_to_json, signature_to_json
from .device import TargetSpec, parse
from .device.cpu import refusal_note
from .device.cpu_features import linux_names
from .device.plain_cpu import plain_cpu_note, warn_of_plain_cpu
from .device.probe import machine
from .errors import UserError
from .signature import DimRange, Signature
from .threads import choose_threads

if TYPE_CHECKING:
    import tvm
    from typing_extensions import Unpack

    from .deploy.build.prepare import Prepared
    from .frontend import Imported

register_errors()


def compile(  # the public name, as in tvm.compile
    model: Any,
    target: Any = "cpu",
    config: Config | None = None,
    *,
    cache: bool | str | os.PathLike[str] | None = None,
    **options: Unpack[Options],
) -> Artifact:
    """Compile a model.

    Parameters
    ----------
    model : str, os.PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX or ``.pt2`` file. A mapping of names to models makes each
        a function of one artifact, in which weights of equal elements are stored once:
        ``{"prefill": program, "decode": other}``.
    target : str, dict or tvm.target.Target
        ``"cpu"`` (this machine), ``"cpu:x86-64-v3"``, ``"cuda:sm_80,sm_90a"``, ``"rocm:gfx942"``:
        of several architectures each gets the kernels that are best for it;
        see :func:`tvm_fusion.device.parse`.
    config : FusionConfig or dict, optional
        What to choose.
    cache : bool, str or os.PathLike, optional
        A folder of what was compiled before, or True for the one that the environment variable
        ``TVM_FUSION_CACHE`` names (by default one in the user's): an equal ONNX model with equal
        options comes from there. It keeps ``TVM_FUSION_CACHE_SIZE`` bytes at most (``10G``).
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

    Examples
    --------
    >>> model = onnx.parser.parse_model(
    ...     '<ir_version: 8, opset_import: ["": 17]>'
    ...     "relu (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"
    ... )
    >>> artifact = tvm_fusion.compile(model, target="cpu", dims={"N": 2})
    >>> exe = tvm_fusion.load(artifact.export("build/relu"))
    >>> exe(x=np.array([[-1, 0, 2], [3, -4, 5]], "float32"))["y"]
    array([[0., 0., 2.],
           [3., 0., 5.]], dtype=float32)
    """
    config = configure(config, options)
    if config.dump is not None:
        check_writable(config.dump)
    spec = parse(target).permitting(config.flags)
    config = config.for_kind(spec.kind)
    warn_of_plain_cpu(target)
    if config.precision != "auto":
        return _cached(model, target, spec, config, cache)
    from .measure.precision import fastest_precision

    def compile_in(precision: Precision) -> Artifact:
        dump = config.dump and config.dump / precision
        one = replace(config, precision=precision, error_bound=None, samples={}, dump=dump)
        return _cached(model, target, spec, one, cache)

    return fastest_precision(compile_in, spec, config.error_bound, config.samples)


def _cached(
    model: Any, target: Any, spec: TargetSpec, config: FusionConfig, cache: Any
) -> Artifact:
    store = ArtifactCache.open(cache)
    if store is None:
        return _compile(model, target, spec, config)
    key = cache_key(model, spec, config)
    with store.locked(key):
        found: Artifact | None = store.get(key)
        if found is None:
            found = _compile(model, target, spec, config)
            store.put(key, found)
    return found


def _compile(model: Any, target: Any, spec: TargetSpec, config: FusionConfig) -> Artifact:
    from .deploy.toolchain import toolchain

    start = time.perf_counter()
    report("starting the compiler")
    with toolchain(spec), recording() as decisions:
        if note := plain_cpu_note(target):
            record(Decision(spec.text, "", "fallback", "plain_cpu", note))
        if note := refusal_note(spec):
            record(Decision(spec.text, "", "fallback", "without_amx", note))
        import tvm

        from .core.constants.weight_names import WeightNames, tracking
        from .deploy.build.amd_registers import inspecting_registers
        from .deploy.build.build import Built, build, export_library, store
        from .deploy.build.packed_functions import packed_functions
        from .deploy.build.prepare import prepare_workers
        from .deploy.memory.limits import limits
        from .frontend import import_model
        from .frontend.functions import import_models
        from .fusion.claims import remembering
        from .measure.profiling import profiled

        report("importing")
        of_several = isinstance(model, Mapping)
        imported = (import_models if of_several else import_model)(model, config)
        if not imported.signatures:
            raise UserError(
                f"{imported.source} has no function from tensors to tensors",
                advice="give it one, such as main, whose parameters and results are tensors",
            )
        _check_dims(imported.dims, spec)
        parts, twins, spread = _spread(imported, config, spec)
        imported = parts[0]
        limited = limits(imported.mod, imported.signatures, config.writes)
        choose_threads()
        has_run_kernels()  # evaluates constants
        named = chain.from_iterable(part.weight_names.items() for part in parts)
        names = WeightNames(((name, const) for const, name in named), len(parts) > 1)
        prepared: dict[str, Prepared] = {}
        taken: dict[str, list[Decision]] = {}
        kernels: dict[str, Infos] = {}
        context = {"relax.backend.use_cuda_graph": config.cuda_graph}
        with (
            telling_of_large_extents(),
            profiled(config, spec) as profile,
            tvm.transform.PassContext(config=context),
            tracking(names),
            remembering(),
        ):
            of_others: dict[str, list[Prepared]] = {}  # workers from 1

            def built_once() -> Built:
                for one in spec.each:
                    (arch,) = one.archs
                    with (
                        one.tvm_target(),
                        recording() as taken[arch],
                        collecting() as kernels[arch],
                    ):
                        dumped = _dumped(config, arch, spec)
                        prepared[arch], *of_others[arch] = prepare_workers(
                            parts, twins, partial(_scheduled, config=dumped), one, names
                        )
                report("generating machine code")
                return build(prepared, spec)

            count = len(decisions)
            built = built_once()
            if built.spills:
                del decisions[count:]
                with inspecting_registers():
                    built = built_once()
            packed = packed_functions(one.mod for one in prepared.values())
    workers = {
        f"{arch}{AT}{rank}": other
        for arch in prepared
        for rank, other in enumerate(of_others[arch], 1)
    }
    weights, used = store({**prepared, **workers}, built.names)
    code = {
        arch: _code(imported, config, one, built.counts[arch], built.names.get(arch, {}))
        for arch, one in prepared.items()
    }
    groups = {
        one.archs[0]: _groups(one, kernels[one.archs[0]], built.names.get(one.archs[0], {}))
        for one in spec.each
    }
    needed = built.features
    first, *others = prepared
    content = {
        "schema": manifest.SCHEMA,
        "versions": {
            name: version(name) for name in ("tvm_fusion", "apache-tvm", "apache-tvm-ffi")
        },
        "source": imported.source,
        "target": _describe(spec, needed),
        "precision": config.precision,
        "alignment": "element",
        "dims": dims_to_json(imported.dims),
        "suffix": built.suffixes[first],
        "functions": {
            name: {
                **signature_to_json(signature),
                "limits": {n: asdict(limit) for n, limit in limited[name].items()},
                **code[first][name],
            }
            for name, signature in imported.signatures.items()
        },
        "architectures": {
            arch: {
                "suffix": built.suffixes[arch],
                "functions": code[arch],
                **groups[arch],
                **_features(needed.get(arch)),
            }
            for arch in others
        },
        **groups[first],
        "stored_kernels": [
            {"archs": list(archs), "names": kernels} for archs, kernels in built.kernels.items()
        ],
        "profile": None if profile is None else profile.counts(),
        "decisions": _decisions(decisions, taken),
        "libraries": packed.libraries,
        "packed_functions": packed.application,
    }
    if len(parts) > 1:
        content["workers"] = spread
    if isinstance(model, str | os.PathLike):
        content["options"] = command_options(config)
    return Artifact(
        content,
        weights,
        used,
        lambda path: export_library(built.compiled, spec, path, set().union(*needed.values())),
        time.perf_counter() - start,
    )


def _spread(
    imported: Imported, config: FusionConfig, spec: TargetSpec
) -> tuple[list[Imported], list[dict[int, Any]], dict[str, Any]]:
    """Spread a model over workers, if it is for several."""
    if config.workers == 1:
        return [imported], [], {}
    from .parallel.shard import shard

    report("spreading the model over workers")
    found = shard(imported, config.workers, config.shards, config.writes, spec.each[0].device)
    about = {"size": config.workers, "functions": found.shards, "split": found.sentences}
    return found.parts, found.twins, about


def _check_dims(dims: Mapping[str, DimRange], spec: TargetSpec) -> None:
    """Refuse ranges from 0 on GPUs: their drivers launch no grid of 0 blocks."""
    for name, dim in dims.items():
        if dim.low == 0 and spec.kind != "llvm":
            raise UserError(
                f"--dim {name}={dim.text} for {spec.kind}",
                f"{name}={replace(dim, low=dim.step).text}, since empty tensors have no kernels on "
                "GPUs",
            )


def _scheduled(imported: Imported, config: FusionConfig) -> tvm.IRModule:
    """Run all stages on a model for the current target."""
    import tvm

    from .deploy.build.dump import Dump
    from .deploy.cuda_graph.static_inputs import mark_static_inputs
    from .deploy.memory.in_place import update_in_place
    from .deploy.memory.write_back import write_back
    from .deploy.memory.write_through import write_through
    from .ecg.legalization.composites import CompileComposites
    from .pipeline import stages

    passes = [CompileComposites(), *stages(config)]
    if config.dump is not None:
        passes.insert(0, Dump(config.dump / "0_frontend.py"))
    mod = update_in_place(imported.mod, imported.signatures, config.writes)
    mod = write_through(tvm.ir.transform.Sequential(passes)(mod))
    mod = write_back(mod, imported.signatures, config.writes)
    return mark_static_inputs(mod, imported.signatures, {*config.static_inputs, *config.in_place})


def _dumped(config: FusionConfig, arch: str, spec: TargetSpec) -> FusionConfig:
    """Set a dump folder of its own for each of several architectures."""
    if config.dump is None or len(spec.archs) == 1:
        return config
    return replace(config, dump=config.dump / arch)


def _code(
    imported: Imported,
    config: FusionConfig,
    one: Prepared,
    counts: Mapping[str, Any],
    library: Mapping[str, str],
) -> dict[str, Any]:
    """Write what the manifest says of an architecture's functions; ``library`` renames kernels."""
    from .deploy.build.launch_names import launches_of

    return {
        name: {
            "weights": one.weight_names.get(name, []),
            "weights_as_tuple": one.passes_tuple[name],
            "in_place": _in_place(signature, config.writes),
            "destinations": [signature.outputs[i].name for i in one.destinations[name]],
            "launches": [
                {**asdict(launch), "kernel": library.get(launch.kernel, launch.kernel)}
                for launch in launches_of(one.mod, name)
            ],
            **counts[name],
        }
        for name, signature in imported.signatures.items()
    }


def _groups(spec: TargetSpec, kernels: Infos, names: Mapping[str, str]) -> dict[str, Any]:
    """Write what the manifest says of an architecture's groups of operators.

    Parameters
    ----------
    names
        The library's names of kernels, where they are others.
    """
    return {
        "groups": [
            {"kernels": [names.get(name, name) for name in called], **asdict(info)}
            for info, called in kernels
        ],
        "priced_for": {"name": spec.device.name, "cores": spec.device.cores},
    }


def _decisions(common: list[Decision], taken: Mapping[str, list[Decision]]) -> list[dict[str, Any]]:
    """List decisions as the manifest has them: one of some architectures alone names these."""
    if len(taken) == 1:
        (of_all,) = taken.values()
        return [asdict(d) for d in (*common, *of_all) if d.verdict != "accepted"]
    by_archs: dict[Decision, list[str]] = {decision: [*taken] for decision in common}
    for arch, decisions in taken.items():
        for decision in dict.fromkeys(decisions):
            by_archs.setdefault(decision, []).append(arch)
    return [
        asdict(decision) | ({"archs": archs} if len(archs) < len(taken) else {})
        for decision, archs in by_archs.items()
        if decision.verdict != "accepted"
    ]


def _in_place(signature: Signature, names: Mapping[str, str]) -> dict[str, str]:
    """List a function's inputs that it writes to, with their outputs."""
    outputs = {spec.name for spec in signature.outputs}
    inputs = [spec.name for spec in signature.inputs if names.get(spec.name) in outputs]
    return {name: names[name] for name in inputs}


def _describe(spec: TargetSpec, needed: Mapping[str, list[str]]) -> dict[str, Any]:
    """Write a target as the manifest has it, with the instruction sets that code needs."""
    described: dict[str, Any] = {"text": spec.text, "kind": spec.kind, "archs": list(spec.archs)}
    if spec.kind == "llvm":
        described["machine"] = spec.triple.split("-")[0] if spec.triple else machine()
    return {**described, **_features(needed.get(spec.archs[0]))}


def _features(needed: list[str] | None) -> dict[str, list[str]]:
    """Write the instruction sets of a CPU as the manifest has them."""
    return {} if needed is None else {"features": needed, "cpuinfo": linux_names(needed)}
