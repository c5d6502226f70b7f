"""A page to look at: the graph before and after fusion, reasons, prices, sources, in one HTML file.

    explanation  what the page of an explanation shows, as one object of plain values
    graphs       the graphs of a planned model: as imported, as fused
    kernels      which PrimFuncs a group became, their text, also in the target's language
    profile      what the page of a profile shows; imports no compiler
    document     the HTML file: content, style and scripts in one, nothing fetched; nor this

The page lays its graphs out when it is opened, by dagre (``assets/dagre.min.js.xz``, version 3.1.3
of @dagrejs/dagre, 49 kB; its MIT licence lies next to it and stands in each page), in a worker: a
reader asks for one graph of several, and a layout in each would double the file. ELK's layered
algorithm is 1.6 MB of script; layered layouts in Python are unmaintained or bring Graphviz. dagre
alone takes a second for 400 operators and exceeds the stack for 3,000, so ``assets/layout.js``
gives it pieces: between operators that all paths run through, with long edges left out. Equal
pieces, such as the layers of a model, are laid out once.
"""
