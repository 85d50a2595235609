"""Linear layers on a CPU: how the weights of any model are stored, and which kernel multiplies them."""
