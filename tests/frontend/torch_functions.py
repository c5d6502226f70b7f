"""Functions of PyTorch as modules, several as one, so that one export and one build do for all."""

import torch


class Function(torch.nn.Module):
    """A function without parameters."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


class Functions(torch.nn.Module):
    """Returns the tuple of several functions' results for the same arguments."""

    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, *arguments):
        return tuple(function(*arguments) for function in self.functions)
