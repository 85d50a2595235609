"""Logits become a token: the noise that target and draft share, and the rules of a request."""
