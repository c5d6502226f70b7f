"""Relax modules of functions that are given by their results."""

from tvm import relax


def main_module(params, result):
    """Write a function that returns ``result``, or what it makes: ``result(emit, *params)``.

    Either is an expression, or a list of those that a tuple is returned of if they are several.
    """
    return module_of({"main": (params, result)})


def typed_module(result, *types):
    """Write such a function with a parameter of each type."""
    return main_module([relax.Var(f"x{i}", t) for i, t in enumerate(types)], result)


def module_of(functions):
    """Write several such functions, as ``(params, result)`` by their names."""
    builder = relax.BlockBuilder()
    for name, (params, result) in functions.items():
        with builder.function(name, list(params)):
            with builder.dataflow():
                found = (
                    result
                    if isinstance(result, list | relax.Expr)
                    else result(builder.emit, *params)
                )
                found = found if isinstance(found, list | tuple) else [found]
                outputs = [builder.emit_output(builder.normalize(one)) for one in found]
            builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return builder.get()
