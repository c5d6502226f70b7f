"""AMD kernels for blocks of as many threads as schedules use, whatever TVM finds on the machine.

TVM 0.27 writes ``amdgpu-flat-work-group-size`` into every kernel: 1 to 256 threads, but 1 to 1024
where a ROCm runtime tells it of a device. LLVM then has half the registers or a quarter of them to
give, and other code comes out: a GEMM that spilled nothing spilled 516. Such a module's LLVM IR is
compiled again with the target's own limit:

    generate -> module with IR;  limit is the target's: done
    object = LLVM(IR with the target's limit);  generate once more, linking that object instead
"""

import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LIMIT = re.compile(r'"amdgpu-flat-work-group-size"="(\d+,\d+)"')
_METADATA = re.compile(r"^!(\d+) =", re.MULTILINE)
_FLAGS = "!llvm.module.flags = !{"
_MOST = "max_threads_per_block"

_recompiled: list[tuple[Any, str, str]] = []  # modules whose own text is not that of their code


@contextmanager
def threads_of_target() -> Iterator[Callable[[bytes], bytes]]:
    """Compile kernels inside this block for the limit of threads that their target names.

    Yields
    ------
    callable
        From the object that TVM wants linked to the one that is to be.
    """
    import tvm_ffi

    name = "target.build.rocm"
    generate = tvm_ffi.get_global_func(name)
    here = threading.local()  # parts of a module are compiled in threads

    def build(mod: Any, target: Any) -> Any:
        module = generate(mod, target)
        text = module.inspect_source("hip")
        limit = f"1,{target.attrs[_MOST]}" if _MOST in target.attrs else None
        if limit is None or set(_LIMIT.findall(text)) <= {limit}:
            return module
        text = with_threads(text, limit)
        here.object, assembly = compile_ir(text, target)
        try:
            module = generate(mod, target)
        finally:
            here.object = None
        _recompiled.append((module, text, assembly))
        return module

    tvm_ffi.register_global_func(name, build, override=True)
    try:
        yield lambda objects: getattr(here, "object", None) or objects
    finally:
        tvm_ffi.register_global_func(name, generate, override=True)
        _recompiled.clear()


def texts_of(module: Any) -> tuple[str, str]:
    """Return LLVM's IR and the assembly of an AMD module's code."""
    for other, text, assembly in _recompiled:
        if other.same_as(module):
            return text, assembly
    return module.inspect_source("hip"), module.inspect_source("asm")


def with_threads(text: str, limit: str) -> str:
    """Write the fewest and the most threads of a block, such as ``1,256``, into LLVM's IR."""
    return _LIMIT.sub(f'"amdgpu-flat-work-group-size"="{limit}"', text)


def compile_ir(text: str, target: Any) -> tuple[bytes, str]:
    """Compile LLVM's IR for a target: an object and its assembly."""
    import tvm_ffi

    attrs = target.attrs
    config = {
        "kind": "llvm",
        "mtriple": str(attrs["mtriple"]),
        "mcpu": str(attrs["mcpu"]),
        "mattr": [str(feature) for feature in attrs.get("mattr", ())],
    }
    number = 1 + max(map(int, _METADATA.findall(text)), default=-1)
    # TVM's loader takes the target from a flag of the module.
    quoted = json.dumps(config).replace('"', r"\22")
    flag = f'!{number} = !{{i32 1, !"tvm_target", !"{quoted}"}}\n'
    text = text.replace(_FLAGS, f"{_FLAGS}!{number}, ") + flag
    with tempfile.TemporaryDirectory() as folder:
        source, code, assembly = (Path(folder, f"kernels.{end}") for end in ("ll", "o", "s"))
        source.write_text(text)
        module = tvm_ffi.load_module(str(source))
        for path in (code, assembly):
            module.write_to_file(str(path), path.suffix[1:])
        return code.read_bytes(), assembly.read_text()
