"""Clients' requests: how they come in, what room they have, how they end."""
