"""Several functions of PyTorch as one module, so that one export and one build do for all."""

import torch


class Functions(torch.nn.Module):
    """Gives a tuple of what functions of the same arguments give."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, *arguments):
        return tuple(function(*arguments) for function in self.functions)
