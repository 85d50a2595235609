"""Model execution. The only package that imports torch; ``interface`` and ``settings`` do not."""
