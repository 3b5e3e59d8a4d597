"""Run a Python program, or -m MODULE, whose `time.perf_counter` is the CPU time of the process.

With one thread that never waits, this is the time that it takes on a machine without other work.
"""

import os
import runpy
import sys
import time

time.perf_counter = time.process_time
if sys.argv[1] == "-m":
    sys.path[0] = ""
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
