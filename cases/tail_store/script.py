"""Trains an attention of image positions over their features in the memory format of CNNs, compiled (pytorch/pytorch#196681)."""

import torch
import torch.nn.functional as F


class Positions(torch.nn.Module):
    """Scores each position of an image against the others of its row, by the features of both and a few learnt ones."""

    def __init__(self, features, side):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, features, 3, padding=1).to(memory_format=torch.channels_last)
        self.head = torch.nn.Linear(side, 10)
        self.side, self.features = side, features

    def forward(self, images):
        return self.head(self.scores(self.stem(images))).mean((0, 1))

    def scores(self, x):
        x = F.gelu(x)
        rest = self.side - self.features
        keys = F.pad(x.permute(3, 2, 1, 0), (0, 0, 0, rest), value=0.5)
        queries = F.pad(x, (0, 0, 0, 0, 0, rest), value=0.5)
        return torch.matmul(queries, keys).squeeze(-1)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Positions(8, 62)
    step = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        images = torch.randn(1, 3, 62, 62).contiguous(memory_format=torch.channels_last)
        loss = F.cross_entropy(step(images)[None], torch.randint(10, (1,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
