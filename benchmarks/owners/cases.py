"""The special cases that there are, by kind."""

from tvm.target import Target

from tvm_fusion import transform
from tvm_fusion.core.contract.templates import templates
from tvm_fusion.device import parse
from tvm_fusion.pipeline import STAGES
from tvm_fusion.rewrite.laws import LAWS
from tvm_fusion.rewrite.recompose.patterns import PATTERNS
from tvm_fusion.rewrite.rules import PASSES
from tvm_fusion.schedule.attention.forms import ROWS
from tvm_fusion.schedule.contraction.gpu.forms import BY_RANK, BY_TIME
from tvm_fusion.schedule.rows.gpu.forms import ROWS as ONE_LAUNCH
from tvm_fusion.schedule.rows.split.forms import ROWS as TWO_LAUNCHES

TARGETS = ("cpu:x86-64-v3", "cuda:sm_90a")
KINDS = ("templates", "forms", "laws", "patterns", "passes")

#: Passes that are one rule of the rewriting stage, by the rule's name.
RULES = {
    "unread_parts": "SkipUnreadParts",
    "byte_products": "ByteProducts",
    "batch_matmuls": "BatchMatmuls",
    "join_matmuls": "JoinMatmuls",
    "transposed_phases": "TransposedConvByPhases",
    "norm_statistics": "NormStatistics",
    "weights_along_k": "TransposeWeights",
    "peer_sums": "PeerSums",
    "rounded_activations": "RoundedActivations",
}


def stage_passes() -> frozenset[str]:
    """Name the passes that every model goes through: the stages, and those in front and behind."""
    stages = {make.__name__ for _, make in STAGES}
    return frozenset({*stages, "NormalizeImport", "LowerToVM"})


def cases() -> dict[str, tuple[str, ...]]:
    """Name all special cases, by kind; those of templates begin with their kind of device."""
    found = {
        "templates": tuple(
            f"{kind}: {template.name}"
            for kind, target in zip(("CPU", "GPU"), map(_target, TARGETS), strict=True)
            for template in templates(target)
        ),
        "forms": (
            *(f"product: {row.name}" for row in (*BY_RANK, *BY_TIME)),
            *(f"attention: {row.name}" for row in ROWS),
            *(f"rows: {row.name}" for row in (*ONE_LAUNCH, *TWO_LAUNCHES)),
        ),
        "laws": tuple(law.name for law in LAWS),
        "patterns": tuple(pattern.name for pattern in PATTERNS),
        "passes": tuple(sorted({*transform.__all__} - stage_passes() - {"Rewrite"} | _rules())),
    }
    return {
        kind: tuple(n for n in names if n != "ScheduleKernels") for kind, names in found.items()
    }


def _rules() -> set[str]:
    return {RULES[name] for name in PASSES}


def _target(spec: str) -> Target:
    return parse(spec).tvm_target()
