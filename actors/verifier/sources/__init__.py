"""What proposes tokens: drafters, the draft model between forwards, retrieval, grammars."""
