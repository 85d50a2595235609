"""The decoder on a GPU: Triton's layers, and rounds recorded as CUDA graphs."""
