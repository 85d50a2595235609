"""The verifier. Start reading at ``loop``, whose steps are receive (``dispatcher``, ``peers``), decide (``schedule``),
compute (``forward``), commit and tell (``committer``). ``state`` holds what it knows. ``decoding`` is the text and the
tree of one request, ``requests`` the life of clients' requests, ``drafters`` who drafts for which of them."""
