"""Experiments: many runs with controls, compared with confidence intervals.

mixture_vs_single  settings, methods and runs of the experiment
run                runs it, resumes it, and writes table, curves and results
jobs               trainings in parallel processes
results            scores and curves of finished runs, and the random player
analysis           from results to a table and a conclusion
statistics         means, bootstrap intervals and permutation tests
"""
