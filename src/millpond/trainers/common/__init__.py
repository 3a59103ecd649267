"""Shared by all trainers: building, evaluation, sessions, summaries."""
