"""The fused decoder: ``cpu/`` compiles it with numba, ``gpu/`` with Triton, ``torch/`` is for whatever has neither."""
