"""``llama/`` computes the Llama family by hand, ``transformers.py`` any other causal language model of the hub.

Both take their linear layers from ``linear/``; ``compiled/`` holds what numba compiles.
"""
