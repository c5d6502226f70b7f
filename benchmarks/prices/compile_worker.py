"""A process that compiles a folder of modules: a crash of the compiler costs one batch.

``python -m benchmarks.prices.compile_worker FOLDER LIBRARY.so TARGET``; the modules are files
``FUNCTION.json``, as ``tvm.ir.save_json`` writes them. The last line on the standard output is
a JSON object: why a function is not in the library, by name.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx


def merged(mods: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """Put modules side by side.

    Parameters
    ----------
    mods
        Lowered for the virtual machine, each with a function ``main``.

    Returns
    -------
    tvm.IRModule
        Each ``main`` carries its key as name, every other function the key as a prefix. Equal
        kernels are there once, under the first one's name.
    """
    functions: dict[ir.GlobalVar, ir.BaseFunc] = {}
    kernels: dict[int, list[tuple[ir.BaseFunc, ir.GlobalVar]]] = {}
    for key, mod in mods.items():
        renamed = {
            gvar.name_hint: ir.GlobalVar(
                key if gvar.name_hint == "main" else f"{key}_{gvar.name_hint}"
            )
            for gvar in mod.functions
        }

        for gvar, func in mod.functions.items():
            if isinstance(func, tirx.PrimFunc):
                bare = func.without_attr("global_symbol")
                alike = kernels.setdefault(tvm_ffi.structural_hash(bare), [])
                known = [name for one, name in alike if tvm_ffi.structural_equal(one, bare)]
                if known:
                    renamed[gvar.name_hint] = known[0]
                else:
                    alike.append((bare, renamed[gvar.name_hint]))

        def rename(gvar: ir.GlobalVar, renamed: dict[str, Any] = renamed) -> ir.GlobalVar:
            return renamed[gvar.name_hint]

        for gvar, func in mod.functions.items():
            if renamed[gvar.name_hint] in functions:
                continue
            func = tvm_ffi.structural_map(func, (ir.GlobalVar, rename), order="post")
            if func.attrs and "global_symbol" in func.attrs:
                func = func.with_attr("global_symbol", renamed[gvar.name_hint].name_hint)
            functions[renamed[gvar.name_hint]] = func
    return tvm.IRModule(functions)


def main(folder: str, library: str, text: str) -> None:
    """Read modules, compile them together and write a shared library that holds machine code."""
    from tvm_fusion.deploy.toolchain import toolchain
    from tvm_fusion.device import parse

    spec = parse(text)
    with toolchain(spec):
        import tvm

        import tvm_fusion.pipeline  # noqa: F401  (registers what modules call)
        from tvm_fusion.deploy.build.build import export_library

        files = sorted(Path(folder).glob("*.json"))
        mods = {file.stem: tvm.ir.load_json(file.read_text()) for file in files}
        broken: dict[str, str] = {}
        try:
            executable = _compile(mods, spec.tvm_target())
        # guard: one module that TVM cannot lower must not cost the others
        except Exception:
            broken = {key: reason for key, mod in mods.items() if (reason := _refused(mod, spec))}
            if not broken:  # then the device compiler refused what all of them became together
                raise
            mods = {key: mod for key, mod in mods.items() if key not in broken}
            executable = _compile(mods, spec.tvm_target()) if mods else None
        if executable is not None:
            export_library(executable, spec, Path(library))
    print(json.dumps(broken))


def reason(error: Exception) -> str:
    """Return the line of an exception that says most."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [""]
    useful = [line for line in lines if "Error" in line or "Check failed" in line] or lines
    return f"{type(error).__name__}: {useful[-1].strip()[:300]}"


def _compile(mods: dict[str, Any], target: Any) -> Any:
    from tvm_fusion._tvm.versions import PIPELINE
    from tvm_fusion.deploy.build.codegen import compiling

    pass

    with target, compiling(merged(mods), target, PIPELINE) as compiled_code:
        return compiled_code()


def _refused(mod: Any, spec: Any) -> str | None:
    """Say why TVM cannot compile a module, without asking the device compiler."""
    import tvm_ffi

    name = "tvm_callback_cuda_compile"
    previous = tvm_ffi.get_global_func(name, allow_missing=True)
    tvm_ffi.register_global_func(name, lambda *_: bytearray(b"never run"), override=True)
    try:
        _compile({"alone": mod}, spec.tvm_target())
    # guard: the reason is the result
    except Exception as error:
        return reason(error)
    finally:
        if previous is not None:
            tvm_ffi.register_global_func(name, previous, override=True)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
