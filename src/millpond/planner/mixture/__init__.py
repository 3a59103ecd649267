"""Plans of mixtures: numbers, advice, and both as text."""
