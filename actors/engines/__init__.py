"""Model execution, the only package that imports torch. What others see of it is in :mod:`actors.models`."""
