"""Speculative decoding as pure logic: events in, actions out. No sockets, no clocks, no models."""
