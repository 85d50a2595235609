"""Training draft models: a target's answers, and a small model that learns to write them."""
