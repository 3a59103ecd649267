"""Millpond: a reinforcement-learning trainer, from configuration to gradients."""

__version__ = "0.1.0"
