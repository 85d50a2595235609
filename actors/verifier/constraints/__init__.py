"""What the output of a request must follow: a grammar, dictated tokens, or tokens that are withheld."""
