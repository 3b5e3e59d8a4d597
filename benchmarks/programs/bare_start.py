"""Import what the mlp's training imports, make 5 steps, and print a line after the last one."""

import jsonargparse
import numpy as np
import pandas as pd
import torch
import tqdm
import yaml

IMPORTED = (jsonargparse, np, pd, tqdm, yaml)

if __name__ == "__main__":
    net = torch.nn.Linear(30, 2)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    for _ in range(5):
        torch.nn.functional.cross_entropy(
            net(torch.randn(64, 30)), torch.zeros(64, dtype=torch.long)
        ).backward()
        optimizer.step()
        optimizer.zero_grad()
    print("train 5", flush=True)
