"""Shared by verifier and drafter: the token tree, windows, the verify rule, and every method as a setting."""
