"""Who drafts, for which request, and what it is worth."""
