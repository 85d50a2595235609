"""``duoactor prove``: whether this machine's texts are the target's own, token by token."""
