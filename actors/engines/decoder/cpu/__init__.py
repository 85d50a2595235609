"""What numba compiles: a forward of few rows in one call, ``kernels.run_layers``, and all below it."""
