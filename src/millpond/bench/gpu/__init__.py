"""Measurements on a GPU, to be sent in: `millpond bench --gpu-report`."""
