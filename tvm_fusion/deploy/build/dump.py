"""TVMScript of a module as a file that can be loaded again."""

from pathlib import Path

import tvm
from tvm.ir.transform import PassContext

from ..memory.weights import lift_constants


@tvm.transform.module_pass(opt_level=0, name="Dump")
class Dump:
    """Write the module as TVMScript and pass it on unchanged.

    Tensor constants stand in the file as further parameters of their function, since TVMScript has
    no notation for their data; ``tvm.script.from_source(path.read_text())`` gives the module back.

    Parameters
    ----------
    path
        The file; its folder is made if need be.
    """

    def __init__(self, path: Path):
        self.path = path

    def transform_module(self, mod: tvm.IRModule, _ctx: PassContext) -> tvm.IRModule:
        """Write, and return the same module."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(lift_constants(mod).mod.script(show_meta=True) + "\n")
        return mod
