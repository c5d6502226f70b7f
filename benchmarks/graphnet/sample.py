"""A graph of a checkout of GraphNet as a module, with weights and inputs drawn by its statistics.

A sample is a folder: ``model.py`` holds a ``GraphModule`` whose ``forward`` takes weights and
inputs alike, ``weight_meta.py`` (and ``input_meta.py``) a class of attributes for each of them.
"""

import ast
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: Names of weights; every other argument is an input.
_STATE = re.compile(r"L__?self_|.*_(modules|parameters|buffers)_")
#: What is drawn wider than this stands for a mask of minus infinity, and is kept as it is.
_HUGE = 1e4


class Graph(nn.Module):
    """A graph as a module of its inputs: weights are parameters and buffers.

    Parameters
    ----------
    graph : torch.nn.Module
        Takes weights and inputs by name.
    values
        All arguments of ``graph``; integers stand for symbolic sizes.
    """

    def __init__(self, graph: nn.Module, values: Mapping[str, Tensor | int]):
        super().__init__()
        self.model = graph  # `graph` is an attribute of what torch.export makes of this module
        self.order = list(values)
        self.sizes = {name: value for name, value in values.items() if isinstance(value, int)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        self.inputs = [name for name in tensors if not _STATE.match(name)]
        for name, value in tensors.items():
            if name not in self.inputs:
                self.register_buffer(name, value)

    def forward(self, *inputs: Tensor) -> Any:
        """Return what the graph returns."""
        given = dict(zip(self.inputs, inputs, strict=True)) | self.sizes
        return self.model(*(given[n] if n in given else getattr(self, n) for n in self.order))


def load(folder: Path, seed: int = 0, spread: float = 1.0) -> tuple[Graph, tuple[Tensor, ...]]:
    """Load a sample.

    Parameters
    ----------
    folder
        Of the sample.
    seed
        Of what is drawn.
    spread
        Factor of all standard deviations: deep networks of random weights may overflow.
    """
    generator = torch.Generator().manual_seed(seed)
    values: dict[str, Tensor | int] = {}
    metas = {meta["name"]: meta for meta in described(folder)}
    graph, symbols = _module(folder)
    for name in _arguments(folder):
        value = _draw(metas[name], generator, spread)
        values[name] = int(value) if name in symbols else value
    module = Graph(graph, values).eval()
    return module, tuple(
        v for n, v in values.items() if n in module.inputs and not isinstance(v, int)
    )


def described(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Read the attributes of all arguments, without drawing them."""
    for node in ast.parse(_text(folder)).body:
        if isinstance(node, ast.ClassDef):
            lines = (line for line in node.body if isinstance(line, ast.Assign))
            yield {ast.unparse(line.targets[0]): _constant(line.value) for line in lines}


def elements(folder: Path) -> int:
    """Count the elements of a sample's weights and inputs, by text: parsing takes a second each."""
    shapes = re.findall(r"^    shape = \[([\d, ]*)\]", _text(folder), re.MULTILINE)
    return sum(math.prod(int(n) for n in re.findall(r"\d+", shape)) for shape in shapes)


def _text(folder: Path) -> str:
    files = (folder / "weight_meta.py", folder / "input_meta.py")
    return "\n".join(file.read_text() for file in files if file.exists())


def _constant(node: ast.expr) -> Any:
    # float("inf") is no literal.
    return (
        float(ast.literal_eval(node.args[0]))
        if isinstance(node, ast.Call)
        else ast.literal_eval(node)
    )


def _arguments(folder: Path) -> list[str]:
    forward = next(n for n in ast.walk(_tree(folder)) if isinstance(n, ast.FunctionDef))
    return [argument.arg for argument in forward.args.args[1:]]


def _tree(folder: Path) -> ast.Module:
    return ast.parse((folder / "model.py").read_text())


class _OnCPU(ast.NodeTransformer):
    """Graphs name the device on which they were recorded."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        is_device = isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value)
        return ast.copy_location(ast.Constant("cpu"), node) if is_device else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "device":
            node.keywords = [k for k in node.keywords if k.arg != "index"]
        return node


def _module(folder: Path) -> tuple[nn.Module, set[str]]:
    """Return the graph, and the names of its symbolic sizes."""
    tree = ast.fix_missing_locations(_OnCPU().visit(_tree(folder)))
    forward = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    symbols = {
        a.arg for a in forward.args.args if a.annotation and "SymInt" in ast.unparse(a.annotation)
    }
    space: dict[str, Any] = {}
    exec(compile(tree, str(folder / "model.py"), "exec"), space)  # what a sample is
    return space["GraphModule"](), symbols


def _draw(meta: Mapping[str, Any], generator: torch.Generator, spread: float) -> Tensor:
    """Draw a tensor of given statistics; integers without data are zeros, valid as any index."""
    dtype = getattr(torch, meta["dtype"].removeprefix("torch."))
    shape = meta["shape"]
    if meta.get("data") is not None:
        return torch.tensor(meta["data"], dtype=dtype).reshape(shape)
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    mean, std = (meta[key] if math.isfinite(meta[key] or 0) else 0 for key in ("mean", "std"))
    if abs(mean or 0) > _HUGE:
        return torch.full(shape, mean, dtype=dtype)
    drawn = torch.randn(shape, generator=generator) * ((std or 0) * spread) + (mean or 0)
    if "running_var" in meta["name"]:
        drawn = drawn.abs() + 1e-3
    limits = {"min": meta.get("min_val"), "max": meta.get("max_val")}
    known = {key: value for key, value in limits.items() if value is not None}
    return (drawn.clamp(**known) if known else drawn).to(dtype)
