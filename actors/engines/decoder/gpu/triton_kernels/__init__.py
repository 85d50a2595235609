"""What Triton compiles for a GPU: the steps of a decode round, whose rows have the same bits in any company."""
