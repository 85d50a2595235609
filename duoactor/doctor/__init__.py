"""``duoactor doctor``: does this pair of models fit together, and will speculation pay on this machine?"""
