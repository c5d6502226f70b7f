"""A loaded model, called with arrays by name."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tvm_ffi

from ..._tvm.fork import has_run_kernels
from ...errors import UserError
from ...threads import wants_tvm_pool
from .artifact.signature import dims_from_json, signature_from_json
from .function import Function
from .tensors import ALIGNMENT

if TYPE_CHECKING:
    from .profile.result import Profile
    from .session import Session

_POOLED_ALLOCATOR = 2  # TVM's AllocatorType


class Library:
    """A model's code, open for as long as something refers to it.

    Parameters
    ----------
    module
        TVM's object, which weak references do not take.

    Attributes
    ----------
    has_team : bool
        Whether its kernels run on the process's team of threads, and not on TVM's pools.
    """

    def __init__(self, module: tvm_ffi.Module) -> None:
        self.module = module
        self.has_team = join_team(module)


def release_pools() -> None:
    """Free the memory of deleted tensors that TVM keeps for others of exactly the same size.

    Its pools are the process's and not a model's: with every size that any model ever used they
    grow.
    """
    clear = tvm_ffi.get_global_func("vm.builtin.memory_manager.clear", allow_missing=True)
    if clear is not None:
        clear()


class Executable:
    """A loaded model; made by :func:`tvm_fusion.load`.

    Calls may come from several threads: each has a virtual machine of its own over shared weights.

    Attributes
    ----------
    manifest : dict
        What :mod:`tvm_fusion.deploy.runtime.artifact.manifest` documents, as of the present
        device's architecture.
    signatures : dict of str to Signature
        By function.
    dims : dict of str to DimRange
        Ranges of symbolic dimensions.
    device : tvm_ffi.Device
        Where it runs.
    """

    def __init__(
        self,
        found: dict[str, Any],
        library: Library,
        device: tvm_ffi.Device,
        weights: Mapping[str, tvm_ffi.Tensor],
    ):
        self.manifest = found
        self.device = device
        self.dims = dims_from_json(found["dims"])
        self.signatures = {
            name: signature_from_json(entry) for name, entry in found["functions"].items()
        }
        self._machines = Machines(library, device, found["suffix"])
        self._weights = {
            name: [weights[weight] for weight in entry["weights"]]
            for name, entry in found["functions"].items()
        }
        self._by_name = weights
        self._functions = {name: self._on(self._machines, name) for name in self.signatures}

    def _on(self, machines: Machines, name: str) -> Function:
        """Make a function that runs on certain virtual machines."""
        entry = self.manifest["functions"][name]
        return Function(
            name,
            self.signatures[name],
            self.dims,
            self.device,
            self._weights[name],
            machines.callee,
            in_place=entry.get("in_place", {}),
            destinations=entry.get("destinations", ()),
            alignment=_alignment(self.manifest, self.device),
            weights_as_tuple=entry.get("weights_as_tuple", False),
        )

    def __repr__(self) -> str:
        source, target = self.manifest["source"], self.manifest["target"]["text"]
        inputs = {name: [s.name for s in sig.inputs] for name, sig in self.signatures.items()}
        return f"<Executable of {source} for {target}, inputs {inputs}>"

    def __call__(
        self, /, *positional: Any, out: Mapping[str, Any] | None = None, **inputs: Any
    ) -> Any:
        """Run ``main``; see :meth:`run` for names that cannot be written as keywords.

        Parameters
        ----------
        *positional : array
            Inputs in the model's order. A PyTorch program takes arguments as its module does,
            nested in tuples, lists and dicts.
        out : mapping of str to array, optional
            Results are written into these arrays, by output name.
        **inputs : array
            numpy arrays or anything with ``__dlpack__``, by the names in the model.

        Returns
        -------
        dict of str to array, or what a PyTorch module returns
            By output name: numpy arrays; PyTorch's tensors where an input is one, over the same
            memory; for a model on a GPU ``tvm_ffi.Tensor`` (DLPack) otherwise. Where ``out`` names
            the output, the array that it gave. Called with arguments in order, or of the module's
            nested ones, a PyTorch program returns what its module does; buffers and inputs that
            the module changes are changed in the caller's arrays.

        Raises
        ------
        UserError
            For a wrong or missing name, a wrong shape, dtype or structure.

        Examples
        --------
        >>> exe(image=x)["logits"]  # an ONNX model
        >>> logits = exe(torch.rand(1, 3, 224, 224))  # a torch.export program
        """
        return self.function("main")(*positional, out=out, **inputs)

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        function: str = "main",
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run any function of the model; parameters as in :meth:`__call__`."""
        return self.function(function).run(inputs, out=out)

    def bind(self, inputs: Mapping[str, Any], *, function: str = "main") -> Function:
        """Fix some inputs of a function, such as caches: they are checked and converted once.

        Parameters
        ----------
        inputs : mapping of str to array
            What the device can read in place stays the caller's memory, and what is written to it
            later is seen; the rest is copied now.
        function : str
            Whose inputs.

        Returns
        -------
        Function
            Called with the other inputs, as this object is.

        Raises
        ------
        UserError
            For a name that the function does not have, a wrong shape or dtype.
        """
        return self.function(function).bind(inputs)

    def session(self, *, position: str = "position") -> Session:
        """Make caches, for a sequence of one's own, that calls of functions write in place.

        Parameters
        ----------
        position : str
            The input that says where tokens begin, if functions have it: sessions count it.

        Returns
        -------
        Session
            With the model's functions as methods: ``session.prefill(ids)``, ``session.decode(id)``.
            Several sessions share the weights.

        Raises
        ------
        UserError
            For a model whose functions write to no inputs, or to inputs without fixed shapes.
        """
        from .session import Session

        return Session(self, position)

    def profile(
        self,
        inputs: Mapping[str, Any],
        *,
        function: str = "main",
        runs: int | None = None,
        warmup: int = 3,
    ) -> Profile:
        """Time a function kernel by kernel.

        On a CPU whole calls take turns with calls whose kernels are timed; on a GPU they come
        first. Without CUPTI the kernels of a CUDA graph are then launched one by one. The arrays
        that are passed stay as they are: calls write to copies, which begin as these in each call.

        Parameters
        ----------
        inputs : mapping of str to array
            As in :meth:`run`. On a GPU, arrays of the host are copied to it first.
        function : str
            Which one.
        runs : int, optional
            Timed runs; by default 20, and more of a short call, for two seconds.
        warmup : int
            Whole calls before them.

        Returns
        -------
        Profile
            Time, share, expected time, work, template and members of each group of kernels; the
            host's part.

        Raises
        ------
        UserError
            For inputs that do not fit, and for a function that launches other kernels in each run.
        """
        from .profile.profile import profile

        return profile(self, inputs, function, runs, warmup)

    def instrumented(self, name: str, instrument: Any) -> Function:
        """Return a function on virtual machines of its own, which tell an instrument of calls.

        Parameters
        ----------
        instrument : callable, optional
            As TVM's ``set_instrument`` takes it.
        """
        self.function(name)
        return self._on(self._machines.instrumented(instrument), name)

    def weight(self, name: str) -> tvm_ffi.Tensor | None:
        """Return a weight on the device, if the model has one of that name."""
        return self._by_name.get(name)

    def synchronize(self) -> None:
        """Wait until the device has finished everything that was launched."""
        if self.device.type != "cpu":
            tvm_ffi.get_global_func("runtime.Device_StreamSync")(self.device, 0)

    def function(self, name: str = "main") -> Function:
        """Return a function of the model.

        Raises
        ------
        UserError
            For a name that the model does not have.
        """
        if name not in self._functions:
            known = ", ".join(map(repr, self.signatures))
            raise UserError(f"the model has no function {name!r}", f"one of {known}")
        return self._functions[name]


class Machines:
    """A virtual machine for each thread that calls.

    Knows nothing of the model's functions that use it, so that a model goes, with its mapped
    weights, when its last user goes and not when the garbage collector looks for cycles.

    Parameters
    ----------
    suffix
        Behind the names of the library's functions.
    instrument : callable, optional
        What the machines tell of their calls.
    """

    def __init__(
        self, library: Library, device: tvm_ffi.Device, suffix: str, instrument: Any = None
    ) -> None:
        self._library, self._device, self._suffix = library, device, suffix
        self._instrument = instrument
        self._local = threading.local()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # a parameter: at the end of the process modules' names are gone
            self.__dict__.pop("_local", None)  # the virtual machines, with their tensors
            release_pools()

    def instrumented(self, instrument: Any) -> Machines:
        """Return other machines for the same code, which tell an instrument of their calls."""
        return Machines(self._library, self._device, self._suffix, instrument)

    def callee(self, name: str) -> Any:
        """Find a function of this thread's virtual machine."""
        callees = getattr(self._local, "callees", None)
        if callees is None:
            callees = self._local.callees = {}
            if not self._library.has_team:
                has_run_kernels()
            self._local.machine = self._machine()
        if name not in callees:
            callees[name] = self._local.machine[name + self._suffix]
        return callees[name]

    def _machine(self) -> Any:
        machine = self._library.module["vm_load_executable"]()
        cpu = tvm_ffi.device("cpu", 0)
        places = [self._device] if self._device == cpu else [self._device, cpu]
        setup = [n for d in places for n in (d.dlpack_device_type(), d.index, _POOLED_ALLOCATOR)]
        machine["vm_initialization"](*setup)
        if self._instrument is not None:
            machine["set_instrument"](self._instrument)
        return machine


def _alignment(found: Mapping[str, Any], device: tvm_ffi.Device) -> int | None:
    """Return the alignment that inputs need, in bytes; ``None``: that of an element."""
    is_any = device.type == "cpu" and found.get("alignment") == "element"
    return None if is_any else ALIGNMENT


# One team of threads for the kernels of all artifacts in a process.
#
# Each CPU library has the code of a team (``toolchain/thread_team.c``); the team of the first
# library that is loaded serves the others as well, and that library stays open.
JOIN = "tvm_fusion_thread_team"  # of a library: takes how to launch, 0 for its own, and returns it

_lock = threading.Lock()
_launch = 0  # the address of the function that runs parallel loops


def join_team(library: tvm_ffi.Module) -> bool:
    """Let a library's kernels run on the process's team.

    Returns
    -------
    bool
        False where they run on TVM's pools: the library is a GPU's, or the environment asks for it.
    """
    global _launch
    if wants_tvm_pool():
        return False
    try:
        join = library.get_function(JOIN, query_imports=True)
    except AttributeError:
        return False
    with _lock:
        _launch = join(_launch)
        return _launch != 0
