"""What numba compiles: a forward of few rows in one call, ``kernels.run_layers``, and all below it.

numba keeps machine code on disk until the file of the function that was asked for changes, and does not look at what
that calls in other files: after an upgrade it would run the old code. So the files whose functions are kept hold
``SOURCES``, a digest of all files here, which a test compares with them.
"""
