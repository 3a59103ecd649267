"""Recursions over time: advantages and lambda returns, each with a plain reference beside it. Pure functions of arrays."""
