"""`make gpu-smoke`: what only a GPU can show about rendered projects, in minutes, without a network.

`supervisor.py` runs the checks of `checks/` in a worker process, one after another, and survives its crashes and
hangs. Each result is appended to a file of JSON lines at once, so that a time limit costs only the remaining checks.
"""
