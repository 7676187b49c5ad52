"""Tensors of half precision meet numbers that half precision does not hold."""
import torch
import torch.nn.functional as F

torch.manual_seed(1)
for dtype in (torch.bfloat16, torch.float16):
    p = torch.nn.Parameter(torch.randn(4, 33).to(dtype))
    optimizer = torch.optim.SGD([p], lr=0.013, momentum=0.9, weight_decay=0.01, foreach=True)
    size = p.abs() + 0.1
    x = p * 0.7 + 0.3 - p / 0.9 + (0.1 - p) + torch.add(p, size, alpha=0.3) + torch.rsub(p, 0.77, alpha=0.3)
    x = x + size.pow(2.3) + p ** 3 + size ** -2 + size ** -0.5 + size.rsqrt() + 0.7 ** p
    limit = torch.full_like(p, 0.7)
    x = x + torch.where(limit < 0.7, p, 0.3) + (limit == 0.7).to(dtype)
    x = x + p.sigmoid() + F.logsigmoid(p) + F.glu(torch.cat([p, size], -1), -1)
    loss = F.huber_loss(x, p.detach(), delta=0.7)
    loss.backward()
    optimizer.step()
    print(loss.item())
