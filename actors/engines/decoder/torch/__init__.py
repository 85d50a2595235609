"""Attention in plain torch."""
