"""llama-server's own API: its requests as our questions, and our answers in its fields."""
