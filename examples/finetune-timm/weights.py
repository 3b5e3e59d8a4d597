"""Pretrain a network of timm on mirrored digits, as nothing is downloaded here; save it as timm does."""

from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 8 - 1, dtype=torch.float32).mT.unsqueeze(1)
labels = torch.tensor(digits.target) + 500
net = timm.create_model("test_resnet", in_chans=1, num_classes=1000)
optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
for _ in range(6):
    for indices in torch.randperm(1400).split(64):
        loss = F.cross_entropy(
            net(F.interpolate(images[indices], (32, 32), mode="bilinear")), labels[indices]
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
Path("build").mkdir(exist_ok=True)
save_file(net.state_dict(), "build/backbone.safetensors")
print(f"loss {loss.item():.3f}")
