"""A model that runs on several workers, called as one that runs on one is."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import queue
import secrets
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tvm_ffi

from ....core.shards import Shard
from ....errors import UserError
from ....signature import Signature, TensorSpec
from ....words import counted
from .. import arguments
from ..artifact.signature import dims_from_json, signature_from_json
from ..executable import Executable
from ..session import Session
from ..tensors import as_array, to_numpy, write_into
from . import disco, processes, service
from .peers import Broken, Peers, connect
from .processes import Processes

_pools: dict[str, Processes] = {}
_START_AGAIN = "load the artifact again"


class Workers:
    """A session of disco with one artifact on all its workers.

    Parameters
    ----------
    load : callable
        Loads a worker's part.
    """

    def __init__(self, folder: Path, found: Mapping[str, Any], load: service.Load) -> None:
        size: int = found["workers"]["size"]
        self.size, self._key = size, secrets.token_hex(8)
        self._answers: queue.SimpleQueue[tuple[BaseException | None, Any]] = queue.SimpleQueue()
        self._reason = ""
        memory, sockets = connect(size)
        self._peers = Peers(0, sockets[0], memory)
        answers = self._answers
        self._service = service.Service(
            self._key, self._peers, load, lambda error, result: answers.put((error, result))
        )
        self._processes = Processes(self._key, sockets, memory, self._ended)
        _pools[self._key] = self._processes
        processes.register(_pools)
        service.register()
        self._session = disco.process_session(size, processes.CREATE, self._key)
        self._call: Callable[..., None] | None = disco.on_all(self._session, service.CALL)
        try:
            self.call("start", str(folder), found["sha256"])
        except BaseException:
            self.close()
            raise

    def _ended(self, reason: str) -> None:
        """Note that a process ended, and wake up who waits for it."""
        self._reason = self._reason or reason
        self._peers.fail(self._reason)
        self._answers.put((Broken(self._reason), None))

    def call(self, name: str, *args: Any) -> Any:
        """Run a command on all workers, and return worker 0's result.

        Raises
        ------
        UserError
            Worker 0's, and where a worker ended or failed.
        """
        if self._call is None:
            raise UserError("the workers of this model have been closed", None, _START_AGAIN)
        if self._reason or self._peers.reason:
            self._break()
        try:
            data = pickle.dumps((name, args))
            if len(data) > service.LONGEST_MESSAGE:
                self._service.outgoing.put(data)
                self._call(self._key, b"", len(data))
            else:
                self._call(self._key, data, len(data))
            error, result = self._answers.get()
        except BaseException:  # an interrupt: the next answer would be of this call
            self._peers.fail("a call was interrupted")
            raise
        if isinstance(error, UserError) and not self._peers.reason:
            raise error
        if error is not None:
            self._break(error)
        return result

    def _break(self, error: BaseException | None = None) -> NoReturn:
        """End all workers, and say why."""
        if "ended" in self._peers.reason and not self._reason:
            with contextlib.suppress(queue.Empty):  # how it ended, from who waits for the process
                self._answers.get(timeout=1)
        reason = self._reason or self._peers.reason or repr(error)
        self._peers.fail(reason)
        self.close()
        raise UserError(reason, "workers that all run", _START_AGAIN) from error

    def close(self) -> None:
        """End the workers; calls are refused afterwards."""
        if self._call is None:
            return
        is_broken = bool(self._reason or self._peers.reason)
        self._processes.stop_watching()
        # Its destructor waits for worker 0's thread, which then must not wait for Python's lock.
        disco.synchronize(self._session)
        self._session = self._call = None
        self._peers.close()
        self._processes.close(kill=is_broken)
        self._service.close()
        _pools.pop(self._key, None)


class ParallelExecutable(Executable):
    """A loaded model on several workers; made by :func:`tvm_fusion.load`.

    It is called as :class:`tvm_fusion.Executable` is, with whole tensors. Calls of several threads
    take turns.

    Attributes
    ----------
    manifest : dict
        The artifact's.
    signatures : dict of str to Signature
        By function, of whole tensors.
    dims : dict of str to DimRange
        Ranges of symbolic dimensions.
    workers : int
        How many there are: this process, and one process for each other.
    """

    def __init__(self, folder: Path, found: dict[str, Any], load: service.Load) -> None:
        self.manifest, self.device = found, tvm_ffi.device("cpu", 0)
        if found["target"]["kind"] != "llvm":
            self.device = tvm_ffi.device(found["target"]["kind"], 0)
        self.workers = found["workers"]["size"]
        self.dims = dims_from_json(found["dims"])
        self.signatures = {
            name: _whole(signature_from_json(entry), found["workers"]["functions"][name])
            for name, entry in found["functions"].items()
        }
        self._numbers = itertools.count()
        self._workers = Workers(folder, found, load)
        self._finalizer = weakref.finalize(self, self._workers.close)

    def __repr__(self) -> str:
        source, target = self.manifest["source"], self.manifest["target"]["text"]
        inputs = {name: [s.name for s in sig.inputs] for name, sig in self.signatures.items()}
        on = counted(self.workers, "worker")
        return f"<ParallelExecutable of {source} for {target} on {on}, inputs {inputs}>"

    def __call__(
        self, /, *positional: Any, out: Mapping[str, Any] | None = None, **inputs: Any
    ) -> Any:
        """Run ``main`` with inputs in order or by name; as :meth:`tvm_fusion.Executable.run`."""
        names = [spec.name for spec in self._signature("main").inputs]
        return self.run(arguments.by_name(names, positional, inputs), out=out)

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        function: str = "main",
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a function of the model; as :meth:`tvm_fusion.Executable.run`."""
        signature = self._signature(function)
        hosts = _on_host(signature, inputs)
        arguments.check_names(list(signature.inputs), hosts)
        unknown = [name for name in out or {} if name not in (s.name for s in signature.outputs)]
        if unknown:
            known = ", ".join(repr(s.name) for s in signature.outputs)
            raise UserError(f"there is no output {unknown[0]!r}", f"one of {known}")
        _check_shapes(signature, hosts)
        outputs: dict[str, Any] = self._workers.call("run", function, hosts)
        written = self.manifest["functions"][function].get("in_place", {})
        for name, output in written.items():
            write_into(inputs[name], outputs[output], f"input {name!r}")
            outputs[output] = inputs[name]
        for name, array in (out or {}).items():
            write_into(array, outputs[name], f"out {name!r}")
            outputs[name] = array
        return outputs

    def function(self, name: str = "main") -> NoReturn:
        """Refuse: what workers run together has no function that one of them could call."""
        raise UserError(
            f"the function {name!r} by itself of a model on {counted(self.workers, 'worker')}",
            "a call, run or session of the whole model",
            "compile it for 1 worker to bind its inputs or profile it",
        )

    def session(self, *, position: str = "position") -> ParallelSession:
        """Make caches on all workers; as :meth:`tvm_fusion.Executable.session`."""
        return ParallelSession(self._workers, next(self._numbers), position)

    def synchronize(self) -> None:
        """Wait until all workers have finished everything that was launched."""
        self._workers.call("synchronize")

    def close(self) -> None:
        """End the workers, as happens when this object goes."""
        self._finalizer()

    def _signature(self, name: str) -> Signature:
        if name not in self.signatures:
            known = ", ".join(map(repr, self.signatures))
            raise UserError(f"the model has no function {name!r}", f"one of {known}")
        return self.signatures[name]


class ParallelSession(Session):
    """A model's functions over caches of which each worker has its part.

    Made by :meth:`ParallelExecutable.session`; used as :class:`tvm_fusion.Session` is. ``caches``
    are worker 0's parts.
    """

    def __init__(self, workers: Workers, number: int, position: str) -> None:
        self._workers, self._number = workers, number
        # Worker 0's, which counts the tokens.
        self._first: Session = workers.call("session", number, position)
        self.caches, self.length, self._steps = self._first.caches, 0, self._first._steps
        self._finalizer = weakref.finalize(self, _forget, workers, number)

    def __repr__(self) -> str:
        return f"{str(self._first)[:-1]}, on {counted(self._workers.size, 'worker')}>"

    def run(self, function: str, /, *positional: Any, **inputs: Any) -> dict[str, Any]:
        """Run a function over the caches; as :meth:`tvm_fusion.Session.run`."""
        values = tuple(map(_host, positional))
        hosts = {name: _host(value) for name, value in inputs.items()}
        try:
            outputs: dict[str, Any] = self._workers.call(
                "step", self._number, function, values, hosts
            )
        finally:
            self.length = self._first.length
        return outputs

    def reset(self) -> None:
        """Empty the caches, for another sequence."""
        self._workers.call("reset", self._number)
        self.length = self._first.length


def _forget(workers: Workers, number: int) -> None:
    with contextlib.suppress(UserError):
        workers.call("forget", number)


def _whole(signature: Signature, shards: Mapping[str, Any]) -> Signature:
    """Return the signature of whole tensors."""

    def whole(spec: TensorSpec, entry: Any) -> TensorSpec:
        if entry is None:
            return spec
        shard, shape = Shard.of_json(entry), list(spec.shape)
        shape[shard.axis] = shard.extent
        return replace(spec, shape=tuple(shape))

    inputs = tuple(whole(spec, shards["inputs"].get(spec.name)) for spec in signature.inputs)
    outputs = tuple(whole(spec, shards["outputs"].get(spec.name)) for spec in signature.outputs)
    return replace(signature, inputs=inputs, outputs=outputs)


def _on_host(signature: Signature, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Take inputs as arrays of the host, which travel to the workers."""
    dtypes = {spec.name: spec.dtype for spec in signature.inputs}
    return {
        name: _host(as_array(value, dtypes.get(name, ""), f"input {name!r}"))
        for name, value in inputs.items()
    }


def _host(value: Any) -> Any:
    if not hasattr(value, "__dlpack__") or isinstance(value, np.ndarray):
        return value
    tensor = value if isinstance(value, tvm_ffi.Tensor) else tvm_ffi.from_dlpack(value)
    return to_numpy(tensor)


def _check_shapes(signature: Signature, inputs: Mapping[str, np.ndarray]) -> None:
    """Check what is split before it is: the workers check the rest."""
    for spec in signature.inputs:
        shape = inputs[spec.name].shape
        fixed = [(a, b) for a, b in zip(spec.shape, shape, strict=False) if isinstance(a, int)]
        if len(shape) != len(spec.shape) or any(a != b for a, b in fixed):
            wanted = ", ".join(map(str, spec.shape))
            raise UserError(f"input {spec.name!r} has shape {tuple(shape)}", f"({wanted})")
