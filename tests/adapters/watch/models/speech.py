"""Trains a recogniser of digit sequences: convolutions with normalised weights, a temporal classification loss, lengths that differ."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import weight_norm


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(weight_norm(nn.Conv1d(12, 24, 5, padding=2)), nn.ReLU(),
                                    weight_norm(nn.Conv1d(24, 24, 3, stride=2, padding=1), dim=0), nn.ReLU())
        self.head = nn.Linear(24, 11)

    def forward(self, x):
        return F.log_softmax(self.head(self.layers(x).permute(2, 0, 1)), -1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--autocast", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Recogniser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        sounds = torch.randn(args.batch, 12, 60)
        words = torch.randint(1, 11, (args.batch, 8))
        times, lengths = torch.randint(20, 31, (args.batch,)), torch.randint(0, 9, (args.batch,))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
            scores = model(sounds).float()
            loss = F.ctc_loss(scores, words, times, lengths, zero_infinity=True)
        # The likelihood of the first symbols, summed over all times at which they may come.
        loss = loss - 0.01 * torch.logcumsumexp(scores[:, :, 1], 0).mean() - 0.01 * scores.median(-1).values.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
