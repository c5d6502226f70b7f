"""Language models of transformers as programs over caches of fixed size.

``causal_lm``     prefill and decode of a decoder
``seq2seq_lm``    the same of a decoder with an encoder, whose keys and values are caches, too
``static_cache``  the caches' tensors, by name
``window``        keys and values of the last positions, written in turn
``byte_cache``    keys and values of a byte an element
``latent_attention``
                  latent attention over the latents that the cache holds, for one token
``programs``      what is exported, as the compiler takes it
"""

from ..errors import UserError

try:
    from .causal_lm import causal_lm
    from .programs import Programs
    from .seq2seq_lm import seq2seq_lm
except ModuleNotFoundError as error:
    if error.name not in ("torch", "transformers"):
        raise
    raise UserError(
        f"tvm_fusion.models needs {error.name}, which is not installed",
        "torch and transformers",
        "pip install 'tvm_fusion[transformers]'",
    ) from error

__all__ = ["Programs", "causal_lm", "seq2seq_lm"]
