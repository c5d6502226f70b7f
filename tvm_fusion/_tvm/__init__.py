"""Workarounds for bugs of TVM versions, each with a test that fails when it can go."""

from .versions import register_pipelines

__all__ = ["register_pipelines"]
