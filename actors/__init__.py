"""The verifier, the drafter and the budget controller, and what they compute."""
