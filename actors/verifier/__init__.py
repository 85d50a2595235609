"""The verifier. ``loop`` is the way in: receive (``dispatcher``, ``peers``), decide (``schedule``), compute
(``forward``), commit and tell (``committer``). ``state`` is what it knows; ``decoding`` is one request's text and tree,
``requests`` are the clients', ``drafters`` those that guess for them."""
