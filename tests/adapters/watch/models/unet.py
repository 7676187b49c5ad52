"""Trains a small U-Net for segmentation: transposed convolutions, skip connections, channels last."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def double(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU(),
                         nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


class UNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.down1, self.down2, self.middle = double(3, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = double(4 * width, 2 * width)
        self.join1 = double(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        one = self.down1(x)
        two = self.down2(F.avg_pool2d(one, 2))
        x = self.middle(F.max_pool2d(two, 2))
        x = self.join2(torch.cat([self.up2(x), two], dim=1))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.join1(torch.cat([x, one], dim=1)))


def dice(logits, target):
    p = torch.sigmoid(logits)
    shared = (p * target).sum(dim=(1, 2, 3))
    return 1 - ((2 * shared + 1) / (p.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3)) + 1)).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = UNet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)

    for step in range(args.steps):
        images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
        masks = (torch.rand(2, 1, 32, 32) > 0.7).float()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            logits = model(images)
        logits = logits.float()
        loss = F.binary_cross_entropy_with_logits(logits, masks) + dice(logits, masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
