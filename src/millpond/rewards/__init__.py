"""Learning a per-step reward from whole episodes: networks, objectives, batches, baselines, evaluation.

Objectives, correlations and baselines are pure functions; only `network` and `batches` hold state.
"""
