"""The page of all laws and recomposition patterns with their equations, from their tables."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator

from tvm_fusion.core.contract.template import Refusal
from tvm_fusion.core.flags import FLAGS
from tvm_fusion.rewrite import laws
from tvm_fusion.rewrite.egraph.law import Equation, Law
from tvm_fusion.rewrite.recompose.patterns import PATTERNS
from tvm_fusion.rewrite.recompose.recompose import equation

HEAD = """# Laws and patterns

A **law** is an algebraic equation between graphs, which the [search](../concepts/search.md) applies
where the planner finds the result cheaper. A **pattern** is an operator that exporters write out,
and recomposition restores. Both are switched off by name: `--without-rule NAME`,
`without=["NAME"]`.

Where the last column names something, the law is not used there. A law with a *flag* may change
results beyond rounding; it is used only with `--allow FLAG` or `--fast-math`, except on integers
where the column says so.
"""


def page() -> str:
    """Write the page."""
    flags = [f"`{name}`\n: {text}.\n" for name, text in FLAGS.items()]
    parts = [HEAD, "## Flags", *flags]
    for family, title in families():
        own = importlib.import_module(family).LAWS
        rows = [_row(law) for law in own]
        parts += [f"## {title}\n\n| law | equation | flag | refuses |\n| --- | --- | --- | --- |"]
        parts += [*rows, ""]
    parts.append("## Recomposition patterns\n\n| pattern | equation |\n| --- | --- |")
    parts += [f"| `{p.name}` | {_code(' = '.join(equation(p)))} |" for p in PATTERNS]
    return "\n".join(parts) + "\n"


def families() -> list[tuple[str, str]]:
    """List the modules that have a table of laws, with the first sentence of their docstrings."""
    found = []
    for info in pkgutil.walk_packages(laws.__path__, f"{laws.__name__}."):
        module = importlib.import_module(info.name)
        if hasattr(module, "LAWS"):
            title = (module.__doc__ or info.name).partition("\n")[0].strip().rstrip(".")
            found.append((info.name, title.replace("`", "")))
    order = [law.name for law in laws.LAWS]
    first = {f: importlib.import_module(f).LAWS[0].name for f, _ in found}
    return sorted(found, key=lambda family: order.index(first[family[0]]))


def _row(law: Law) -> str:
    _, _, text = repr(law).partition(": ")
    text = " ".join(text.split("\n\n")[0].split()).rstrip(".")
    if law.both:
        text = text.replace(" = ", " ⇄ ", 1) if text.count(" = ") == 1 else f"{text} (both ways)"
    flag = f"`{law.needs}`" if law.needs else ""
    if law.needs and law.is_modular:
        flag += ", not on integers"
    return f"| `{law.name}` | {_code(text)} | {flag} | {_refuses(law)} |"


def _refuses(law: Law) -> str:
    """Say where a law does not hold: all that its check may refuse."""
    check = law._condition if isinstance(law, Equation) else type(law).check
    if check is None or check is Law.check:
        return ""
    return _plain("; ".join(dict.fromkeys(_refusals(check, type(law)))))


def _refusals(check: Callable, law: type[Law]) -> Iterator[str]:
    """Yield what a check refuses, by its docstring, or else by the sentences and checks in it."""
    text = " ".join((check.__doc__ or "").partition("\n\n")[0].split())
    if text.startswith("Refuse "):
        yield text.removeprefix("Refuse ").rstrip(".")
        return
    code = check.__code__
    for constant in code.co_consts:
        if isinstance(constant, str) and constant.endswith(".") and constant != check.__doc__:
            yield _where(constant)
    for name in code.co_names:
        if name == "super":
            later = law.__mro__[[check in vars(c).values() for c in law.__mro__].index(True) + 1 :]
            used = next(vars(c)["check"] for c in later if "check" in vars(c))
        else:
            used = check.__globals__.get(name, getattr(law, name, None))
        if isinstance(used, Refusal):
            yield _where(used.sentence)
        elif name != "check" and "Refusal" in str(
            getattr(used, "__annotations__", {}).get("return", "")
        ):
            yield from _refusals(used, law)


def _where(sentence: str) -> str:
    return f"where {sentence[0].lower()}{sentence[1:].rstrip('.')}"


def _code(text: str) -> str:
    """Write an equation as code; a docstring's literals need no marks inside of it."""
    text = text.replace("``", "").replace("|", "\\|")
    return f"`{text}`"


def _plain(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|").replace("*", "\\*")
