"""The main job: a model in, an artifact out."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from ._tvm.errors import register_errors, telling_of_large_extents
from ._tvm.fork import has_run_kernels
from .config import Config, FusionConfig, Options, Precision, command_options, configure
from .core.contract.kernel_info import Infos, collecting
from .core.decisions import Decision, record, recording
from .core.progress import report
from .deploy.build.artifact import Artifact, check_writable
from .deploy.cache.folder import ArtifactCache
from .deploy.cache.key import cache_key
from .device import TargetSpec, parse
from .device.cpu import refusal_note
from .device.plain_cpu import plain_cpu_note, warn_of_plain_cpu
from .errors import UserError
from .signature import DimRange
from .threads import choose_threads

if TYPE_CHECKING:
    import tvm
    from typing_extensions import Unpack

    from .deploy.build.description import Compilation
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
        _note_target(target, spec)
        imported = _imported(model, config, spec)
        parts, twins, spread = _spread(imported, config, spec)
        made = _made(parts, twins, config, spec, decisions)
    from .deploy.build.build import export_library, store
    from .deploy.build.description import describe

    built = made.built
    weights, used = store(made.modules, built.names)
    content = describe(made, decisions)
    if len(parts) > 1:
        content["workers"] = spread
    if isinstance(model, str | os.PathLike):
        content["options"] = command_options(config)
    return Artifact(
        content,
        weights,
        used,
        lambda path: export_library(built.compiled, spec, path, built.instruction_sets),
        time.perf_counter() - start,
    )


def _note_target(target: Any, spec: TargetSpec) -> None:
    """Record what a CPU's name leaves out, and what the system does not let use."""
    if note := plain_cpu_note(target):
        record(Decision(spec.text, "", "fallback", "plain_cpu", note))
    if note := refusal_note(spec):
        record(Decision(spec.text, "", "fallback", "without_amx", note))


def _imported(model: Any, config: FusionConfig, spec: TargetSpec) -> Imported:
    from .frontend import import_model
    from .frontend.functions import import_models

    report("importing")
    of_several = isinstance(model, Mapping)
    imported = (import_models if of_several else import_model)(model, config)
    if not imported.signatures:
        raise UserError(
            f"{imported.source} has no function from tensors to tensors",
            advice="give it one, such as main, whose parameters and results are tensors",
        )
    _check_dims(imported.dims, spec)
    return imported


def _made(
    parts: list[Imported],
    twins: list[dict[int, Any]],
    config: FusionConfig,
    spec: TargetSpec,
    decisions: list[Decision],
) -> Compilation:
    """Run all stages for each architecture, and generate machine code.

    Parameters
    ----------
    parts, twins
        As :func:`_spread` gives them.
    decisions
        What is recorded meanwhile.
    """
    import tvm

    from .core.constants.weight_names import WeightNames, tracking
    from .deploy.build.amd_registers import inspecting_registers
    from .deploy.build.build import build
    from .deploy.build.description import Compilation
    from .deploy.build.packed_functions import packed_functions
    from .deploy.build.prepare import prepare_workers
    from .deploy.memory.limits import limits
    from .fusion.claims import remembering
    from .measure.profiling import profiled

    imported = parts[0]
    limited = limits(imported.mod, imported.signatures, config.writes)
    choose_threads()
    has_run_kernels()  # evaluates constants
    named = chain.from_iterable(part.weight_names.items() for part in parts)
    names = WeightNames(((name, const) for const, name in named), len(parts) > 1)
    context = {"relax.backend.use_cuda_graph": config.cuda_graph}
    with (
        telling_of_large_extents(),
        profiled(config, spec) as profile,
        tvm.transform.PassContext(config=context),
        tracking(names),
        remembering(),
    ):

        def made_once() -> Compilation:
            prepared: dict[str, Prepared] = {}
            of_others: dict[str, list[Prepared]] = {}
            taken: dict[str, list[Decision]] = {}
            kernels: dict[str, Infos] = {}
            for one in spec.each:
                (arch,) = one.archs
                with one.tvm_target(), recording() as taken[arch], collecting() as kernels[arch]:
                    dumped = _dumped(config, arch, spec)
                    prepared[arch], *of_others[arch] = prepare_workers(
                        parts, twins, partial(_scheduled, config=dumped), one, names
                    )
            report("generating machine code")
            built = build(prepared, spec)
            packed = packed_functions(one.mod for one in prepared.values())
            found = (prepared, of_others, built, packed, kernels, taken)
            return Compilation(imported, config, spec, limited, profile, *found)

        count = len(decisions)
        made = made_once()
        if made.built.spills:
            del decisions[count:]
            with inspecting_registers():
                made = made_once()
    return made


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
