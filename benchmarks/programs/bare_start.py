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
        output = net(torch.randn(64, 30))
        target = torch.zeros(64, dtype=torch.long)
        loss = torch.nn.functional.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("train 5", flush=True)
