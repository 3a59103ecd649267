"""Plans of PPO: numbers, advice, and both as text."""
