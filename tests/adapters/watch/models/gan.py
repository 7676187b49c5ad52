"""Trains a DCGAN: two networks and two optimizers that take turns."""
import argparse

import torch
import torch.nn as nn


def generator(noise=32, width=16):
    return nn.Sequential(
        nn.ConvTranspose2d(noise, 4 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(4 * width), nn.ReLU(True),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.ReLU(True),
        nn.ConvTranspose2d(2 * width, 1, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width=16):
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(2 * width, 1, 4, 1, 0, bias=False), nn.Flatten())


def init(module):
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    g, d = generator(), discriminator()
    g.apply(init)
    d.apply(init)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_g = torch.optim.Adam(g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(d.parameters(), lr=2e-4, betas=(0.5, 0.999))

    for step in range(args.steps):
        real = torch.randn(8, 1, 16, 16).clamp(-1, 1)
        ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            fake = g(torch.randn(8, 32, 1, 1))
            loss_d = criterion(d(real), ones) + criterion(d(fake.detach()), zeros)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()

        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            loss_g = criterion(d(fake), ones)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        print(step, loss_d.item(), loss_g.item())


if __name__ == "__main__":
    main()
