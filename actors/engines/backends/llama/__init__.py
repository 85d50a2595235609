"""The Llama family by hand."""
