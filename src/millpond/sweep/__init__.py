"""Sweeps: search over the settings of a recipe, with several seeds per point. Optuna does the search (extra `sweep`).

space    the keys that are searched, from a YAML file, checked against the recipe
folder   the files of a sweep: settings, trials, sessions and the hours that were spent
points   the check of a point before it runs, and its expected cost
trial    training of a trial's seeds from rung to rung, and when a poor one is stopped
study    Optuna's study in the folder, shared by all processes
worker   one process that runs trials until the sweep is done, and then the winner on fresh seeds
results  table, results.json, importance, best.yaml and the status
run      starts workers and reports what they do
"""
