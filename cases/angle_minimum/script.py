"""Trains a network whose features are the smallest angle of each set of points, compiled (pytorch/pytorch#186799)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SmallestAngle(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Linear(2, 16)
        self.head = nn.Linear(8, 4)

    def forward(self, points):
        x, y = self.place(points).chunk(2, -1)
        return self.head(torch.atan2(x, y).amin(1))


def main(dtype=torch.float32):
    torch.manual_seed(0)
    model = SmallestAngle().to(dtype)
    step = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(2):
        points, labels = torch.randn(20, 3, 2).to(dtype), torch.randint(4, (20,))
        optimizer.zero_grad()
        loss = F.cross_entropy(step(points), labels)
        loss.backward()
        print(f"loss {loss.item():.4f}, largest gradient {model.place.weight.grad.abs().max():.4f}")
        optimizer.step()


if __name__ == "__main__":
    main()
