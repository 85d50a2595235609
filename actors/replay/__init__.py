"""Exact replay: what a drafter would have brought to requests that have ended, without running the target."""
