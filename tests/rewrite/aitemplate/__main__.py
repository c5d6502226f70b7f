"""The command line: count all rows, and write the page."""

from .page import PAGE, render

PAGE.write_text(render())
