"""What knows TVM versions: workarounds of its bugs, each with a test that fails when it can go."""

from .versions import register_pipelines

__all__ = ["register_pipelines"]
