"""``duoactor top``: what the actors do now, in a terminal."""
