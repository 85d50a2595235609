"""The tests; their helpers are imported by full name, the shared ones from ``tests.world``."""
