"""Ollama's API: its requests as our questions, and our answers as its lines of JSON."""
