"""The board: a page in the browser with all runs of a folder, live curves, sweeps and episodes. Needs the extra `board`.

catalog   the runs and sweeps of a folder, read again only where a file has changed
records   the records of a run in bounded memory, read from where the last reading ended
curves    curves of several runs, with intervals over seeds; if a run is still learning
details   everything about one run: config, plan, time by phase, checkpoints, evaluations, lake
sweeps    trials of a sweep and its Pareto front
episodes  episodes of a policy, played in a process of their own (`player`) and shown step by step
labels    tags, notes, and the request to stop: all that the board writes
machine   cores, memory and disk in use
guard     what is refused: other hosts, other sites, no token, large requests
server    the addresses, and serving them

The page is in `static`: plain JavaScript without a build. It loads nothing from the network.
"""
