"""Assembly of CPU kernels."""

import re

import tvm


def inner_block(func, spec, pattern):
    """Return the basic block with most matches of a pattern, and how many it has."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    built = tvm.tirx.build(mod, spec.tvm_target(), pipeline="tvm_fusion")
    blocks = re.split(r"\n\.L\w+:", built.inspect_source("asm"))
    inner = max(blocks, key=lambda text: len(re.findall(pattern, text)))
    inner = re.split(r"\n\tj|\n\tb\.", inner)[0]
    return inner, len(re.findall(pattern, inner))
