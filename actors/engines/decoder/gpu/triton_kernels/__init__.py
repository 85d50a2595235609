"""What Triton compiles for a GPU: the steps of a decode round; a row has the same bits in any company."""
