"""The programs that execute a description of a model."""
