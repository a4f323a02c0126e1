"""jurat: reinforcement learning from verification."""

__version__ = "0.1.0"
