"""The page of all decision codes with their sentences, collected from the package's source.

A verdict is made where its values are known, so its sentence stands there: in a call of `Decision`,
`Refusal` or another class or function that takes a code and a sentence. Values that a sentence
names are shown as "…".
"""

import ast
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).parents[2] / "tvm_fusion"
VALUE = "…"
DEEPEST = 3  # how far names and functions are followed
HEAD = """# Decision codes

Every verdict of a stage is a {class}`tvm_fusion.core.decisions.Decision`: what it is about, a code
that stays the same from release to release, and a sentence with the values of the case.
`tvm-fusion explain` prints them, `--json` and the artifact's manifest have both. Below, "…" stands
for such a value.
"""
STAGES = {
    "frontend": "Reading a model",
    "ecg": "Operators as TensorIR",
    "rewrite": "Rewriting",
    "fusion": "Fusion",
    "layout": "Layouts",
    "parallel": "Several workers",
    "schedule": "Kernels",
    "deploy": "Machine code and artifacts",
    "measure": "Measuring",
    "report": "Reports",
}
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Taker(NamedTuple):
    """A class or function of a code and a sentence: their positions, and their names."""

    code: int
    sentence: int
    names: tuple[str, str]


def page() -> str:
    """Write the page."""
    found = codes()
    parts = [HEAD]
    for stage in [*STAGES, *sorted({stage for stage, _ in found} - set(STAGES))]:
        own = sorted(code for room, code in found if room == stage)
        if own:
            parts.append(f"\n## {STAGES.get(stage, stage.capitalize())}\n")
        for code in own:
            parts.append(f"`{code}`")
            parts += [f": {_escaped(text)}\n" for text in found[stage, code]]
    return "\n".join(parts) + "\n"


@functools.lru_cache
def codes(root: Path = ROOT) -> dict[tuple[str, str], list[str]]:
    """Collect sentences by the package's folder and by code."""
    source = Source({path: path.read_text() for path in sorted(root.rglob("*.py"))})
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path, module in source.holding(rf"\b({'|'.join(source.takers)})\("):
        stage = path.relative_to(root).parts[0].removesuffix(".py")
        for code, sentence in source.verdicts(module):
            found[stage, code].add(sentence)
    return {key: sorted(sentences) for key, sentences in sorted(found.items())}


class Source:
    """Modules that make verdicts; those with something to look at are parsed.

    Parameters
    ----------
    texts : dict of Path to str
        Of all modules, since sentences are passed from one to another.
    """

    def __init__(self, texts: dict[Path, str]) -> None:
        self._texts_of = texts
        self._parsed: dict[Path, ast.Module] = {}
        self.takers: dict[str, Taker] = {}
        for _, module in self.holding(r"\bcode: str\b"):
            for node in ast.walk(module):
                if isinstance(node, ast.ClassDef):
                    annotated = [a.target for a in node.body if isinstance(a, ast.AnnAssign)]
                    fields = [target.id for target in annotated if isinstance(target, ast.Name)]
                elif isinstance(node, Function):
                    fields = [argument.arg for argument in node.args.args]
                else:
                    continue
                sentence = next((name for name in ("sentence", "reason") if name in fields), None)
                if "code" in fields and sentence is not None:
                    indices = fields.index("code"), fields.index(sentence)
                    self.takers[node.name] = Taker(*indices, ("code", sentence))
        heirs = rf"class (\w+)\(({'|'.join(self.takers)})\)"
        for text in texts.values():
            for name, base in re.findall(heirs, text):
                self.takers.setdefault(name, self.takers[base])

    def holding(self, pattern: str) -> Iterator[tuple[Path, ast.Module]]:
        """Yield the modules whose text a regular expression finds."""
        for path, text in self._texts_of.items():
            if re.search(pattern, text):
                if path not in self._parsed:
                    self._parsed[path] = ast.parse(text)
                yield path, self._parsed[path]

    @functools.cache  # noqa: B019 (one source, for as long as the page is made)
    def _returns(self, name: str) -> list[tuple[Function, ast.expr]]:
        """List what the functions of a name return."""
        return [
            (node, one.value)
            for _, module in self.holding(rf"\bdef {name}\(")
            for node in ast.walk(module)
            if isinstance(node, Function) and node.name == name
            for one in _own(node, ast.Return)
            if one.value is not None
        ]

    def verdicts(self, module: ast.Module) -> Iterator[tuple[str, str]]:
        """Yield the codes and sentences of a module's verdicts."""
        scopes = [module, *(node for node in ast.walk(module) if isinstance(node, Function))]
        for scope in scopes:
            for call in _own(scope, ast.Call):
                taker = self.takers.get(_last_name(call.func))
                given = taker and _arguments(call, taker)
                if given:
                    yield from self._pairs(*given, [scope, module])

    def _pairs(
        self, code: ast.expr, sentence: ast.expr, scopes: list[ast.AST]
    ) -> Iterator[tuple[str, str]]:
        """Yield the values that a call's code and sentence may have together."""
        blocks = _blocks(scopes[0]) if isinstance(code, ast.Name) else []
        ways = []
        for block in blocks:  # the sentence that is set with the code
            own = _assigned(block, _last_name(code))
            sentences = _assigned(block, _last_name(sentence)) or [sentence]
            ways += list(zip(own, itertools.cycle(sentences), strict=False))
        for one, other in ways or [(code, sentence)]:
            yield from itertools.product(self._texts(one, scopes), self._texts(other, scopes))

    def _texts(self, node: ast.expr, scopes: list[ast.AST], depth: int = 0) -> list[str]:
        """List the texts that an expression may be; none where that is not known."""
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else []
        if isinstance(node, ast.JoinedStr):
            parts = [p.value if isinstance(p, ast.Constant) else VALUE for p in node.values]
            return ["".join(map(str, parts))]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = [
                self._texts(side, scopes, depth) or [VALUE] for side in (node.left, node.right)
            ]
            return ["".join(pair) for pair in itertools.product(*sides)]
        further: list[tuple[list[ast.AST], ast.expr]] = []
        if isinstance(node, ast.IfExp):
            further = [(scopes, node.body), (scopes, node.orelse)]
        elif isinstance(node, ast.Name) and depth < DEEPEST:
            for scope in scopes:
                further = further or [(scopes, e) for b in _blocks(scope)
                                      for e in _assigned(b, node.id)]  # fmt: skip
        elif isinstance(node, ast.Call) and depth < DEEPEST:
            returned = self._returns(_last_name(node.func))
            further = [([function], value) for function, value in returned]
        return [text for where, e in further for text in self._texts(e, where, depth + 1)]


def _arguments(call: ast.Call, taker: Taker) -> list[ast.expr]:
    """Return what a call gives as the code and the sentence; nothing where one is missing."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    given = [
        named.get(name) or (call.args[i] if i < len(call.args) else None)
        for name, i in zip(taker.names, taker[:2], strict=True)
    ]
    return [argument for argument in given if argument is not None] if all(given) else []


def _own(scope: ast.AST, kind: type) -> Iterator:
    """Yield the nodes of a kind in a scope, without those of functions inside."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, kind):
            yield child
        if not isinstance(child, Function):
            yield from _own(child, kind)


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in a scope."""
    for node in [scope, *_own(scope, ast.stmt | ast.ExceptHandler)]:
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and not (isinstance(node, Function) and node is not scope):
                yield block


def _assigned(block: list[ast.stmt], name: str) -> list[ast.expr]:
    """List what a name is set to by the statements of a block, not of blocks inside."""
    found = []
    for statement in block:
        for assign in [statement, *_own(statement, ast.NamedExpr)]:
            if isinstance(assign, ast.Assign):
                targets = assign.targets
            elif isinstance(assign, ast.NamedExpr | ast.AnnAssign) and assign.value:
                targets = [assign.target]
            else:
                continue
            for target in targets:
                pairs = [(target, assign.value)]
                if isinstance(target, ast.Tuple) and isinstance(assign.value, ast.Tuple):
                    pairs = list(zip(target.elts, assign.value.elts, strict=True))
                found += [v for t, v in pairs if isinstance(t, ast.Name) and t.id == name]
    return found


def _last_name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _escaped(text: str) -> str:
    for mark in "\\`*_<[":
        text = text.replace(mark, f"\\{mark}")
    return text
