"""The page of the passes of ``tvm_fusion.transform``, in the order of the pipeline."""

import inspect

from tvm_fusion import transform

HEAD = """# Passes

Every stage is an `IRModule -> IRModule` pass in TVM's own idiom, to be used alone in any pipeline.
Passes are idempotent, leave functions with the attributes `Composite`, `Codegen` or `Primitive`
unchanged, and record a [decision](decision_codes.md) where they refuse something. Those that choose
by cost run under a target: `with target:`.

Every pass raises {class}`tvm_fusion.UserError` for what the user can put right; what else it raises
is a defect.

```{eval-rst}
.. automodule:: tvm_fusion.transform
```
"""
#: In the order in which the pipeline runs them: stages, then the passes that one consists of.
ORDER = (
    ("Stages", ("NormalizeImport", "ToHalfPrecision", "Rewrite", "Legalize", "FuseOperators",
                "PlanLayout", "ScheduleKernels", "LowerToVM")),
    ("Passes of the stage Rewrite", ("Recompose", "SearchEquivalents", "GreedyEquivalents",
                                     "ByteProducts", "JoinMatmuls", "BatchMatmuls",
                                     "TransposedConvByPhases", "NormStatistics")),
)  # fmt: skip


def page() -> str:
    """Write the page; it documents each name of ``tvm_fusion.transform.__all__`` once."""
    parts = [HEAD]
    for title, names in ORDER:
        parts.append(f"## {title}\n")
        for name in names:
            thing = getattr(transform, name)
            kind = "class" if inspect.isclass(thing) else "function"
            parts.append(f"```{{eval-rst}}\n.. auto{kind}:: {name}{_signature(thing)}\n```\n")
    return "\n".join(parts)


def _signature(thing: object) -> str:
    """Write the parameters without annotations; TVM's decorator hides those of most passes."""
    found = inspect.signature(thing).parameters.values()  # type: ignore[arg-type]
    if any(p.kind is p.VAR_POSITIONAL for p in found):
        return "()"
    written = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in found]
    return f"({', '.join(written)})"
