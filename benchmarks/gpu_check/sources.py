"""Where groups come from: plans of the zoo's models and of generated graphs."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import tvm

from benchmarks import zoo
from tvm_fusion import transform
from tvm_fusion._tvm.versions import PIPELINE
from tvm_fusion.config import FusionConfig
from tvm_fusion.deploy.count import count as count_kernels
from tvm_fusion.device import parse
from tvm_fusion.frontend import import_model
from tvm_fusion.signature import DimRange

from .cases import Case, grouped
from .drawing import given
from .entry import Entry, LeftOut
from .expected import store
from .groups import Distinct, entry

#: In the order in which they are asked; light_vgg19 and light_alexnet add nothing but time.
MODELS = (
    *("bert_base_dyn", "t5_small_enc", "llama_4l", "unet2d", "efficientnet_b0", "convnext_tiny"),
    *("gpt2", "vit_b16", "mobilenet_v2", "resnet50", "bert_base"),
    *("light_inception_v2", "light_shufflenet", "light_densenet121", "light_squeezenet"),
)
ZOO_SHARE = 0.7  # of the groups asked for; the others come from generated graphs
PER_MODEL = 16
PER_GRAPH = 3
_SEQUENCE = DimRange(1, 512)
HALF_GRAPHS = 16
_TRIES = 40  # graphs without a new group before giving up


def zoo_groups(
    models: tuple[str, ...], most: int, distinct: Distinct, target: str, seed: int
) -> Iterator[Entry | LeftOut]:
    """Yield up to ``most`` entries of groups of the zoo's models, and what was left out."""
    made = 0
    for name in models:
        if made >= most:
            return
        try:
            dims = {"seq": _SEQUENCE} if name.endswith("_dyn") else {}
            mod = import_model(zoo.load(name, seed), FusionConfig(dims=dims)).mod
            found = list(distinct(grouped(mod, parse(target).tvm_target())))
        # guard: becomes a line of the report; the other models are asked all the same
        except Exception as error:
            yield LeftOut.because(name, "zoo group", "plan", error)
            continue
        for case in spread(found, min(PER_MODEL, most - made)):
            title = f"{name} {case.gvar.name_hint}"
            one = entry(title, "zoo group", case, target, seed, {})
            made += isinstance(one, Entry)
            yield one


def fuzz_groups(most: int, distinct: Distinct, target: str, seed: int) -> Iterator[Entry | LeftOut]:
    """Yield up to ``most`` entries of groups of generated graphs, and what was left out.

    Half precision comes as whole graphs, :data:`HALF_GRAPHS` of them, whose references are float64.
    """
    from tests.fuzz.generate import generate
    from tests.fuzz.graph import to_module

    made, halves, without = 0, 0, 0
    for number in count(seed):
        if (made >= most and halves >= HALF_GRAPHS) or without > _TRIES:
            return
        graph = generate(number)
        if graph.has_half:
            if halves < HALF_GRAPHS:
                halves += 1
                yield whole_graph(graph, distinct, target)
            continue
        if made >= most:
            continue
        name = f"fuzz {number}"
        try:
            mod = grouped(to_module(graph), parse(target).tvm_target())
            found = spread(list(distinct(mod)), min(PER_GRAPH, most - made))
        # guard: becomes a line of the report; the other graphs are asked all the same
        except Exception as error:
            yield LeftOut.because(name, "fuzz group", "plan", error)
            continue
        without = 0 if found else without + 1
        for case in found:
            title = f"{name} {case.gvar.name_hint}"
            one = entry(title, "fuzz group", case, target, seed, graph.envs[0])
            made += isinstance(one, Entry)
            yield one


def whole_graph(graph: Any, distinct: Distinct, target: str) -> Entry | LeftOut:
    """Make an entry of a generated graph at its first instantiation."""
    from tests.fuzz.graph import to_module
    from tests.fuzz.reference import evaluate

    name, kind = f"fuzz graph {graph.seed}", "half graph"
    try:
        tvm_target = parse(target).tvm_target()
        mod = grouped(to_module(graph), tvm_target)
        groups = len(list(distinct(mod)))
        with tvm_target:
            passes = [transform.PlanLayout(), transform.ScheduleKernels(), transform.LowerToVM()]
            mod = tvm.ir.transform.Sequential(passes)(mod)
        counted = count_kernels(mod, tvm_target, dims=graph.envs[0], tir_pipeline=PIPELINE)
    # guard: as above
    except Exception as error:
        return LeftOut.because(name, kind, "plan", error)
    values = evaluate(graph, 0)
    outputs = []
    for value in graph.outputs:
        dtype = graph.types[value][1]
        outputs.append(store(values[value].exact, dtype, values[value].tolerance(dtype)))
    launches = counted.kernels - counted.copies - counted.library_calls
    arguments = [given(leaf.at(0)) for leaf in graph.parameters]
    about = {"graph": str(graph), "extents": dict(graph.envs[0])}
    return Entry(name, kind, mod, arguments, 0, outputs, launches, "float64", groups, about)


def spread(found: list[Case], most: int) -> list[Case]:
    """Choose cases so that every template has its turn."""
    queues: dict[str, list[Case]] = {}
    for case in found:
        queues.setdefault(case.template, []).append(case)
    chosen: list[Case] = []
    while queues and len(chosen) < most:
        for name in list(queues):
            chosen.append(queues[name].pop(0))
            if not queues[name]:
                del queues[name]
    return chosen[:most]
