"""Plans of reward learning: numbers, advice, and both as text."""
