"""Keys and values: the pool, who has which part of it, and what is kept for later prompts."""
