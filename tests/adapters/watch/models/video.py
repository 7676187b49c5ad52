"""Trains a network on clips: a spatial transformer, convolutions and pooling over three dimensions, distances to prototypes, a bilinear
layer, and means by scattering."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class Clips(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Linear(3 * 16, 6)
        self.first = nn.Conv3d(3, 8, 3, padding=1)
        self.second = nn.Conv3d(8, 16, (1, 3, 3), stride=(1, 2, 2), groups=2)
        self.back = nn.ConvTranspose3d(16, 16, 2, stride=2)
        self.prototypes = nn.Parameter(torch.randn(5, 16))
        self.pairs = nn.Bilinear(16, 16, 5)

    def forward(self, x):
        frames = x.transpose(1, 2).flatten(0, 1)
        angles = self.place(F.adaptive_avg_pool2d(frames, 4).flatten(1)).float()
        theta = 0.1 * angles.view(-1, 2, 3) + torch.eye(2, 3)
        grid = F.affine_grid(theta, list(frames.shape), align_corners=False)
        x = F.grid_sample(frames, grid, padding_mode="border", align_corners=False).view(x.transpose(1, 2).shape).transpose(1, 2)
        x = F.max_pool3d(F.relu(self.first(x)), 2)
        x = F.avg_pool3d(self.back(F.relu(self.second(x))).float(), 2, ceil_mode=True)
        means = F.adaptive_avg_pool3d(x, (1, 2, 2)).flatten(2)
        one, other = means[..., 0], means[..., 3]
        return self.pairs(one, other) - torch.cdist(one, self.prototypes) - torch.cdist(other, self.prototypes, 1.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Clips()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(args.steps):
        clips, labels = torch.rand(args.batch, 3, 4, 16, 16), torch.randint(0, 5, (args.batch,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            scores = model(clips).float()
            losses = F.cross_entropy(scores, labels, reduction="none")
        by_label = torch.zeros(5).scatter_reduce(0, labels, losses, "mean", include_self=False)
        loss = by_label.sum() + 0.01 * scores.kthvalue(2).values.sum() + 0.01 * torch.vdot(scores[:, 0], scores[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
