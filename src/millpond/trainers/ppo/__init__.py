"""Recurrent PPO: rows, advantages, minibatches."""
