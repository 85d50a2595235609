"""What computes a forward: any transformers model, or the Llama family by hand."""
