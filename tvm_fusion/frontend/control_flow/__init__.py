"""Convert loops and branches of any framework: unrolled, or functions that call themselves."""
