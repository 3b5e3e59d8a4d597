"""Print the baselines that take a moment, computed from the data of the rendered project in the current folder."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import data_baselines

if sys.argv[1] == "gpt":
    train, val = data_baselines.read_library("proj")
    found = data_baselines.compressors(val)
elif sys.argv[1] == "diffusion":
    found = data_baselines.velocities(*data_baselines.read_digits("proj"), times=8)
elif sys.argv[1] == "bert":
    found = data_baselines.by_frequency(*data_baselines.read_statements("proj"))
else:
    train, val = data_baselines.read_digits("proj")
    found = data_baselines.pixel_histogram(train, val)
    found |= data_baselines.compressors([b"".join(val)])
print(json.dumps(found))
