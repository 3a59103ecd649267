"""Experiments: many runs with controls, compared with confidence intervals.

file            the YAML file of an experiment: methods x worlds x seeds; the packaged ones are beside it
mixture_budget  equal frames, rounds and gradient steps for the methods of a mixture experiment
jobs            trainings in processes of their own
run             runs an experiment, resumes it, and writes its results
results         scores and curves of finished runs, and the random player
statistics      interquartile means, bootstrap intervals, permutation tests, profiles, detectable differences
analysis        the table and the conclusion
pictures, page  learning curves, profiles, and the page of an experiment
"""
