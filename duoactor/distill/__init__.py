"""What `duoactor distill` says of the draft that it made: prediction, card, picture."""
