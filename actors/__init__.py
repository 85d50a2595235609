"""The actors (verifier, drafter, controller, learner), and what they compute with."""
