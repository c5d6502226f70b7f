"""Options of the backend: ``torch.compile(model, backend="tvm_fusion", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import FusionConfig, configure
from ..device import parse
from ..errors import UserError, unknown_name

# What the backend finds out by itself, or what names inputs, of which a graph of dynamo has others.
_NOT_TAKEN = ("dims", "constants", "static_inputs", "in_place")
_OWN = ("target", "cache", "freeze", "fallback")


@dataclass(frozen=True)
class BackendOptions:
    """Options of all graphs of a model."""

    # As of :func:`tvm_fusion.compile`; by default the device of the graph's tensors.
    target: str | None = None
    # Folder of artifacts that were compiled before, also by other processes; True for the user's.
    # Off where ``profile`` or ``dump`` is given.
    cache: bool | str | Path = True
    # Make parameters and buffers constants, which may be folded and packed: faster, but later
    # changes of them are not seen.
    freeze: bool = False
    # Let PyTorch run a graph that cannot be compiled, and warn; by default it is an error.
    fallback: bool = False
    config: FusionConfig = field(default_factory=FusionConfig)  # options of the compilation

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> BackendOptions:
        """Check options.

        Raises
        ------
        UserError
            For an unknown one, with the names that are near, and a value that it does not take.
        """
        if given is not None and not isinstance(given, Mapping):
            raise UserError(f"options of type {type(given).__name__}", "options={'name': value}")
        own, others = dict(given or {}), {}
        fields = [n for n in FusionConfig.__dataclass_fields__ if n not in _NOT_TAKEN]
        for name in list(own):
            if name not in _OWN:
                if name not in fields:
                    raise unknown_name("option", str(name), [*_OWN, *fields])
                others[name] = own.pop(name)
        for name in ("freeze", "fallback"):
            if not isinstance(own.get(name, False), bool):
                raise UserError(f"{name} is {own[name]!r}", "True or False")
        if own.get("target") is not None:
            parse(own["target"])
        if not isinstance(own.get("cache", True), (bool, str, Path)):
            raise UserError(f"cache is {own['cache']!r}", "True, False or a folder")
        config = configure(FusionConfig(), others)
        if config.profile is not None or config.dump is not None:
            own.setdefault("cache", False)
        return cls(config=config, **own)
