"""Makes better weights of the draft model out of what is served. Whatever it does, no token depends on it."""
