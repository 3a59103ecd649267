"""Experiments: questions that need many runs, asked with controls and answered with intervals."""
