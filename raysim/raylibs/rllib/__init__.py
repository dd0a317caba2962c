"""RLlib: env runners that sample, learners that update, and weights that go back."""
