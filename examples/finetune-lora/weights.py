"""Train the run that LoRA starts from: the same recipe without LoRA, and few epochs."""

import subprocess
import sys

recipe = ["--config=configs/default.yaml", "--train.init_from=null", "--lora.rank=null", "--train.epochs=6"]
subprocess.run([sys.executable, "-m", "proj.train", *recipe, "--run.name=base"], check=True)
