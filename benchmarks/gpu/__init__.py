"""Speed on a GPU, against a copy and PyTorch's compiler."""
