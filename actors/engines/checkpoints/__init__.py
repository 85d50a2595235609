"""Model directories: loading them, in which type, and writing larger models that compute the same."""
