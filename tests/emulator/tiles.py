"""AMX's tile instructions on any x86 CPU: calls of an interpreter in their place.

A test compiles and runs its kernels in a function; :class:`Tiles` calls it, once with interpreted
tiles, and again on the CPU's own where there are some, and compares the results bit by bit::

    def test_products(tiles):
        found = tiles.run(lambda: built(kernel, TILES)(*arrays))

Beside the tiles kernels hold vector code, so a target names a CPU that the tests run on, and AMX.
"""

import ctypes
import dataclasses
import importlib
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import ir, tirx
from tvm.target import codegen as llvm

from tvm_fusion._tvm.ir.structural import structural_map
from tvm_fusion.deploy.build import codegen
from tvm_fusion.deploy.runtime import load as load_module
from tvm_fusion.device import probe
from tvm_fusion.device.cpu_features import capabilities
from tvm_fusion.device.tile_permission import TILE_INTRINSICS, refused_tiles

#: AVX2, which all machines of tests have, and tiles.
TILES = "cpu:x86-64-v3,+amx-int8,+amx-bf16"
_CALL = ir.Op.get("tirx.call_llvm_intrin")


def tiles_of(dtype):
    """Return a target with tiles that multiply a type, and LLVM's name of what brings them."""
    if dtype == "float16":  # few CPUs that have tiles
        return "cpu:x86-64-v3,+amx-fp16", "amx-fp16"
    return TILES, "amx-tile"


class TileMistake(AssertionError):
    """What a CPU would answer by an exception, or another's tiles that a kernel left behind."""


class Tiles:
    """The interpreter, and this machine's own tiles.

    Parameters
    ----------
    folder
        For the interpreter's library.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tiles.so"
        options = ["-D_GNU_SOURCE", "-std=gnu11", "-O2", "-march=x86-64-v3", "-shared", "-fPIC"]
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["cc", *options, source, "-o", path], check=True)
        self._library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        self._library.tiles_mistake.restype = ctypes.c_char_p
        self._library.tiles_products.restype = ctypes.c_long

    def is_native(self, feature) -> bool:
        """Whether this CPU has a feature of tiles, and this process the permission to use them."""
        return feature in probe.host_cpu().features and refused_tiles() is None

    def run(self, call, feature="amx-tile"):
        """Compile and run with interpreted tiles, and with this machine's own.

        Parameters
        ----------
        call : callable
            Compiles, runs and returns an array, or a list or dict of them: the same each time.
        feature : str
            What this CPU needs to run it, by LLVM's name.

        Returns
        -------
        object
            The result.

        Raises
        ------
        TileMistake
            As soon as a kernel uses tiles wrongly, or none at all.
        """
        with self.interpreted():
            found = call()
        if self.is_native(feature):
            for one, other in zip(_arrays(found), _arrays(call()), strict=True):
                bits = f"u{one.itemsize}"
                np.testing.assert_array_equal(one.view(bits), other.view(bits), "this CPU's tiles")
        return found

    @contextmanager
    def interpreted(self):
        """Let what is compiled call the interpreter, and artifacts for AMX load here."""
        own = probe.host_cpu()
        can = capabilities(
            own.arch, {*own.features, "amx-tile", "amx-int8", "amx-bf16", "amx-fp16"}
        )
        with pytest.MonkeyPatch.context() as patch:
            for module in (importlib.import_module("tvm.tirx.build"), codegen):
                patch.setattr(module, "codegen_build", _interpreting(module.codegen_build))
            patch.setattr(load_module, "host_cpu", lambda: dataclasses.replace(own, **can))
            patch.setattr(load_module, "refused_tiles", lambda: None)
            self._library.tiles_mistake()
            self._library.tiles_products()
            yield
            mistake = self._library.tiles_mistake().decode()
            if mistake or not self._library.tiles_products():
                raise TileMistake(mistake or "no tiles were multiplied")


def _interpreting(build):
    """Wrap a code generator so that it calls functions in the place of tile instructions."""
    number = llvm.llvm_lookup_intrinsic_id
    names = {int(number(name)): name.rpartition(".")[2] for name in TILE_INTRINSICS}

    def replaced(call):
        if call.op == _CALL and int(call.args[0]) in names:
            name = names[int(call.args[0])]
            return tirx.call_extern("void", f"tile_{name}", *call.args[1:])
        return call

    def interpreted(mod, target):
        functions = {
            gvar: func.with_body(structural_map(func.body, (ir.Call, replaced)))
            for gvar, func in mod.functions.items()
        }
        return build(tvm.IRModule(functions, attrs=mod.attrs), target)

    return interpreted


def _arrays(found):
    if isinstance(found, dict):
        return list(found.values())
    return list(found) if isinstance(found, list | tuple) else [found]
