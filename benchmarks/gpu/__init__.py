"""Speed on a GPU, beside a copy and PyTorch's compiler."""
