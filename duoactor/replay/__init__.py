"""``duoactor replay``: what drafts and settings would have brought to requests that were logged."""
