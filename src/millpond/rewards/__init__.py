"""Learning a per-step reward from whole episodes.

objectives  the losses, as pure functions
network     the reward network and the batch of steps that it takes
sampling    which steps of which episodes are in a batch
batches     recorded episodes as features, and the loss of one batch
metrics     correlations, baselines and scores of a learned reward, as pure functions
"""
