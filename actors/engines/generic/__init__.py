"""The generic engine: transformers' own model code over our pool, for every model outside the fused decoder."""
