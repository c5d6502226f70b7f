"""Language models of transformers as programs over caches of fixed size.

``causal_lm``  prefill and decode of a decoder
``window``     keys and values of the last positions, written in turn
"""

from ..errors import UserError

try:
    from .causal_lm import Programs, causal_lm
except ModuleNotFoundError as error:
    if error.name not in ("torch", "transformers"):
        raise
    raise UserError(
        f"tvm_fusion.models needs {error.name}, which is not installed",
        "torch and transformers",
        "pip install 'tvm_fusion[transformers]'",
    ) from error

__all__ = ["Programs", "causal_lm"]
