"""The HTML file of a page: content, style and scripts in one, nothing fetched.

Content is data, never markup: one JSON object that no name can end (``<`` is an escape there), from
which the script puts text into the document. A content security policy allows this file's own
script, by its hash, and no connection.
"""

import base64
import gzip
import hashlib
import json
import lzma
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...words import finite

_ASSETS = files(__package__) / "assets"
# In the order in which they use each other; one scope for all.
_SCRIPTS = ("data.js", "modules.js", "drawing.js", "charts.js", "panel.js", "main.js")


def document(content: dict[str, Any]) -> str:
    """Write a page.

    Parameters
    ----------
    content
        Such as :func:`tvm_fusion.report.page.explanation_content` gives.

    Returns
    -------
    str
        An HTML document that references nothing outside of itself.
    """
    kernels = content.get("kernels", {})
    shown = {key: value for key, value in content.items() if key != "kernels"}
    script = "(() => {\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}' blob:; worker-src blob:; "
        "style-src 'unsafe-inline'; img-src data:",
        "title": _escaped(str(content["model"])),
        "style": _asset("page.css"),
        "content": _json(shown),
        "kernels": _compressed(kernels),
        "layout": f"{_asset('dagre.min.js.xz')}\n{_asset('layout.js')}",
        "licence": _asset("dagre.LICENSE").strip(),
        "script": script,
    }
    page = _asset("page.html")
    for name in parts:  # the frame has each once; what is put in is not looked at again
        page = page.replace(f"<!--{name}-->", f"\0{name}\0")
    pieces = page.split("\0")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    """Write a page to a file.

    Raises
    ------
    UserError
        If the file cannot be written.
    """
    try:
        # A name from a file may hold halves of surrogate pairs, which are no text.
        Path(path).write_bytes(document(content).encode("utf-8", "replace"))
    except OSError as error:
        raise _unwritable(path, error.strerror) from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that cannot be written, before the work whose result it is for.

    Raises
    ------
    UserError
        If it is a folder, or its folder does not exist or may not be written.
    """
    file = Path(path)
    if file.is_dir():
        raise _unwritable(path, "it is a folder")
    if not file.absolute().parent.is_dir():
        raise _unwritable(path, "its folder does not exist")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise _unwritable(path, "permission denied")


def _unwritable(path: str | os.PathLike[str], why: str | None) -> UserError:
    wanted = "a file in an existing folder that may be written"
    return UserError(f"cannot write {os.fspath(path)!r} ({why})", wanted)


def _asset(name: str) -> str:
    data = (_ASSETS / name).read_bytes()
    return (lzma.decompress(data) if name.endswith(".xz") else data).decode()


def _json(value: Any) -> str:
    """Write JSON that may stand in a script element: nothing in it can end the element."""
    text = json.dumps(finite(value), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _compressed(kernels: Any) -> str:
    """Compress the kernels' text, which is many times the rest; browsers can decompress it."""
    packed = gzip.compress(json.dumps(kernels).encode(), mtime=0)
    return base64.b64encode(packed).decode()


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
