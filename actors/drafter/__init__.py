"""The drafter."""
