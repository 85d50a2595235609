"""Writing checkpoints: of larger models that compute the same."""
