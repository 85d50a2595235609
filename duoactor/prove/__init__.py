"""``duoactor prove``: comparison of this machine's texts with the target's own, token by token."""
