"""Experiments: many runs with controls, compared with confidence intervals.

mixture_vs_single  settings, methods and runs of the experiment
run                runs it, resumes it, and writes table, curves and results
results            scores and curves of finished runs, the random player, and the analysis: a table and a conclusion
statistics         means, bootstrap intervals and permutation tests
"""
