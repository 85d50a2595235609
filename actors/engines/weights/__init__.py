"""Weights: how checkpoints are read and written, how a matrix is stored, and which kernel multiplies it on a CPU."""
