"""The verifier. Begin at ``loop``: ``inbox`` receives, ``scheduler`` decides, ``forward`` computes."""
