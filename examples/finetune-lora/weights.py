"""Train the run that LoRA starts from: the same recipe without LoRA, and half of the epochs of `vit`."""

import subprocess
import sys

recipe = ["--config=configs/default.yaml", "--train.init_from=null", "--lora.rank=null", "--train.epochs=12"]
subprocess.run([sys.executable, "-m", "proj.train", *recipe, "--run.name=base"], check=True)
