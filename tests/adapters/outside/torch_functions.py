"""Functions of PyTorch as people write them, each in a small training step, with a right backward pass and wrong ones. A row is

    name, host, arguments, call, forward pass, what it saves, the right backward pass, {mistake: a wrong backward pass}

Passes are text: the test writes a script of each (scripts.py), so that each backward pass has lines of its own. What a pass returns stands
after its last ";". A wrong one that is a pair has another forward pass, too. 
"""

# Where the Function is used: the weights that `call` names (self.w, ...) are made where they are used. `h` is what the network has there.
HOSTS = {
    "mlp": ("self.a, self.b, self.c = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 4)", "X", """
        h = torch.tanh(self.a(x))
        h = h + {call}
        return F.cross_entropy(self.c(torch.tanh(self.b(h))), Y)"""),
    "cnn": ("self.a, self.b, self.c = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3), nn.Linear(8, 4)", "IMAGES", """
        h = self.a(x)
        h = self.b({call})
        return F.cross_entropy(self.c(torch.tanh(h).mean((2, 3))), KINDS)"""),
    "attention": ("self.a, self.b, self.c = nn.Linear(16, 48), nn.Linear(16, 16), nn.Linear(16, 4)", "TEXTS", """
        q, k, v = self.a(x).view(4, 9, 3, 2, 8).permute(2, 0, 3, 1, 4)
        h = {call}
        return F.cross_entropy(self.c(x + self.b(h.transpose(1, 2).reshape(4, 9, 16))).mean(1), Y[:4])"""),
    "recurrent": ("self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(24, 24), nn.Linear(24, 4)", "TEXTS", """
        h = x.new_zeros(4, 24)
        for t in range(5):
            h = {call}
        return F.cross_entropy(self.c(h), Y[:4])"""),
    "sequence": ("self.a, self.c = nn.Linear(16, 24), nn.Linear(24, 4)", "TEXTS", """
        h = torch.tanh(self.a(x))
        h = {call}
        return F.cross_entropy(self.c(h if h.dim() == 2 else h.mean(1)), Y[:4])"""),
    "embedding": ("self.a, self.c = nn.Linear(16, 24), nn.Linear(24, 4)", "WORDS", """
        h = {call}
        return F.cross_entropy(self.c(torch.tanh(self.a(h)).mean(1)), Y[:4])"""),
    "loss": ("self.a, self.c = nn.Linear(12, 24), nn.Linear(24, 4)", "X", """
        h = self.c(torch.tanh(self.a(x)))
        return {call}"""),
    "regression": ("self.a, self.c = nn.Linear(12, 24), nn.Linear(24, 4)", "X", """
        h = self.c(torch.tanh(self.a(x)))
        return {call}.sum(1).mean()"""),
}
WEIGHTS = {
    "self.w": "nn.Parameter(torch.rand(24) + 0.5)",
    "self.v": "nn.Parameter(torch.randn(24) * 0.1)",
    "self.u": "nn.Parameter(torch.randn(24, 24) * 0.2)",
    "self.r": "nn.Parameter(torch.randn(24, 6) * 0.2)",
    "self.s": "nn.Parameter(torch.randn(6, 24) * 0.2)",
    "self.k": "nn.Parameter(torch.rand(8) + 0.5)",
    "self.f": "nn.Parameter(torch.randn(8, 8, 3, 3) * 0.2)",
    "self.table": "nn.Parameter(torch.randn(20, 16))",
}

FUNCTIONS = [
    # elementwise
    ("Swish", "mlp", "x", "(self.b(h))", "y = x * x.sigmoid(); y", "x", "s = x.sigmoid(); g * (s + x * s * (1 - s))",
     {"MissingTerm": "s = x.sigmoid(); g * s", "Sign": "s = x.sigmoid(); g * (s - x * s * (1 - s))"}),
    ("Mish", "cnn", "x", "(h)", "y = x * torch.tanh(F.softplus(x)); y", "x",
     "t = torch.tanh(F.softplus(x)); g * (t + x * (1 - t * t) * x.sigmoid())",
     {"MissingFactor": "t = torch.tanh(F.softplus(x)); g * (t + x * (1 - t * t))"}),
    ("Gelu", "mlp", "x", "(self.b(h))", "y = x * 0.5 * (1 + torch.erf(x / 2 ** 0.5)); y", "x",
     "c = 0.5 * (1 + torch.erf(x / 2 ** 0.5)); g * (c + x * torch.exp(-x * x / 2) / (2 * math.pi) ** 0.5)",
     {"Quick": "s = torch.sigmoid(1.702 * x); g * (s + x * s * (1 - s))"}),
    ("HardTanh", "mlp", "x", "(self.b(h))", "y = x.clamp(-0.5, 0.5); y", "x", "g * (x.abs() < 0.5)",
     {"OneSided": "g * (x < 0.5)"}),
    ("SquaredRelu", "cnn", "x", "(h)", "r = x.clamp(min=0); y = r * r; y", "r", "2 * g * r", {"Factor": "g * r"}),
    ("Softplus", "mlp", "x", "(self.b(h))", "y = torch.log1p(torch.exp(3 * x)) / 3; y", "x", "g * torch.sigmoid(3 * x)",
     {"Beta": "g * torch.sigmoid(x)"}),
    ("Tanh", "recurrent", "x", "(self.a(x[:, t]) + self.b(h))", "y = torch.tanh(x); y", "x, y", "g * (1 - y * y)",
     {"WrongSaved": "g * (1 - x * x)", "Unsquared": "g * (1 - y.abs())"}),
    ("Exp", "mlp", "x", "(self.b(h))", "t = x * 0.5; ctx.t = t; y = t.exp(); y", "x", "0.5 * g * ctx.t.exp()",
     {"Overwritten": ("t = x * 0.5; ctx.t = t; y = t.exp_(); y.clone()", "0.5 * g * ctx.t.exp()"), "ChainRule": "g * ctx.t.exp()"}),
    ("Leaky", "cnn", "x", "(h)", "y = torch.where(x > 0, x, 0.2 * x); y", "x", "torch.where(x > 0, g, 0.2 * g)",
     {"OtherSlope": "torch.where(x > 0, g, 0.01 * g)"}),
    ("Product", "mlp", "x, z", "(self.b(h), h)", "y = x * z; y", "x, z", "g * z, g * x",
     {"Swapped": "g * x, g * z", "SecondDetached": "g * z, None"}),
    ("Glu", "attention", "x, z", "(v, q)", "y = x * torch.sigmoid(z); y", "x, z",
     "s = torch.sigmoid(z); g * s, g * x * s * (1 - s)", {"GateMissing": "s = torch.sigmoid(z); g * s, g * s * (1 - s)"}),
    ("SinCos", "mlp", "x", "(self.b(h))[1] * h", "y = x.sin(); z = x.cos(); y, z", "y, z", "g * z - k * y",
     {"SecondSign": "g * z + k * y"}),
    # affine maps
    ("Dense", "mlp", "x, w, b", "(h, self.u, self.v)", "y = x @ w.t().to(x.dtype) + b.to(x.dtype); y", "x, w",
     "g @ w.to(g.dtype), g.t() @ x.to(g.dtype), g.sum(0)",
     {"NotTransposed": "g @ w.t().to(g.dtype), g.t() @ x.to(g.dtype), g.sum(0)",
      "WeightTransposed": "g @ w.to(g.dtype), x.to(g.dtype).t() @ g, g.sum(0)",
      "BiasMean": "g @ w.to(g.dtype), g.t() @ x.to(g.dtype), g.mean(0)", "InputDetached": "None, g.t() @ x.to(g.dtype), g.sum(0)"}),
    ("Lora", "mlp", "x, r, s", "(h, self.r, self.s)", "d = x @ r.to(x.dtype); y = 2.0 * (d @ s.to(x.dtype)); y", "x, r, s, d",
     "g = 2.0 * g; t = g @ s.t().to(g.dtype); t @ r.t().to(g.dtype), x.t().to(g.dtype) @ t, d.t().to(g.dtype) @ g",
     {"ScaleForgotten": "t = g @ s.t().to(g.dtype); t @ r.t().to(g.dtype), x.t().to(g.dtype) @ t, d.t().to(g.dtype) @ g"}),
    ("ChannelScale", "cnn", "x, w", "(h, self.k)", "y = x * w[:, None, None].to(x.dtype); y", "x, w",
     "g * w[:, None, None].to(g.dtype), (g * x).sum((0, 2, 3))",
     {"NotSummed": "g * w[:, None, None].to(g.dtype), (g * x)[0].sum((1, 2))",
      "MeanOfBatch": "g * w[:, None, None].to(g.dtype), (g * x).mean(0).sum((1, 2))"}),
    ("Filter", "cnn", "x, w", "(h, self.f)", "y = F.conv2d(x, w.to(x.dtype), padding=1); y", "x, w",
     "torch.nn.grad.conv2d_input(x.shape, w.to(g.dtype), g, padding=1), torch.nn.grad.conv2d_weight(x.to(g.dtype), w.shape, g, padding=1)",
     {"NotFlipped": "F.conv2d(g, w.transpose(0, 1).to(g.dtype), padding=1), torch.nn.grad.conv2d_weight(x.to(g.dtype), w.shape, g, "
                    "padding=1)"}),
    ("WeightNorm", "mlp", "x, w", "(h, self.u)", "n = w.norm(dim=1, keepdim=True); d = w / n; y = x @ d.t().to(x.dtype); y", "x, n, d",
     "e = g.t() @ x.to(g.dtype); g @ d.to(g.dtype), (e - d * (d * e).sum(1, keepdim=True)) / n",
     {"NotProjected": "e = g.t() @ x.to(g.dtype); g @ d.to(g.dtype), e / n"}),
    # normalisations
    ("LayerNorm", "mlp", "x, w, b", "(self.b(h), self.w, self.v)",
     "i = 1 / (x.float() if x.dtype.itemsize == 2 else x).var(1, unbiased=False, keepdim=True).add(1e-5).sqrt(); "
     "n = (x - x.mean(1, keepdim=True)) * i; y = n * w + b; y", "n, i, w",
     "e = g * w; (e - e.mean(1, keepdim=True) - n * (e * n).mean(1, keepdim=True)) * i, (g * n).sum(0), g.sum(0)",
     {"NoVarianceTerm": "e = g * w; (e - e.mean(1, keepdim=True)) * i, (g * n).sum(0), g.sum(0)",
      "NoMeanTerm": "e = g * w; (e - n * (e * n).mean(1, keepdim=True)) * i, (g * n).sum(0), g.sum(0)",
      "WeightForgotten": "e = g; (e - e.mean(1, keepdim=True) - n * (e * n).mean(1, keepdim=True)) * i, (g * n).sum(0), g.sum(0)",
      "GainOfMean": "e = g * w; (e - e.mean(1, keepdim=True) - n * (e * n).mean(1, keepdim=True)) * i, (g * n).mean(0), g.sum(0)"}),
    ("RmsNorm", "mlp", "x, w", "(self.b(h), self.w)", "i = torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5); n = x * i; y = n * w; y",
     "n, i, w",
     "e = g * w; (e - n * (e * n).mean(1, keepdim=True)) * i, (g * n).sum(0)",
     {"NoProjection": "e = g * w; e * i, (g * n).sum(0)"}),
    ("BatchNorm", "cnn", "x, w", "(h, self.k)",
     "i = torch.rsqrt(x.var((0, 2, 3), unbiased=False, keepdim=True) + 1e-5); n = (x - x.mean((0, 2, 3), keepdim=True)) * i; "
     "y = n * w[:, None, None].to(x.dtype); y", "n, i, w",
     "e = g * w[:, None, None].to(g.dtype); d = (0, 2, 3); "
     "(e - e.mean(d, keepdim=True) - n * (e * n).mean(d, keepdim=True)) * i, (g * n).sum(d)",
     {"NoVarianceTerm": "e = g * w[:, None, None].to(g.dtype); d = (0, 2, 3); (e - e.mean(d, keepdim=True)) * i, (g * n).sum(d)",
      "StatisticsDetached": "e = g * w[:, None, None].to(g.dtype); e * i, (g * n).sum((0, 2, 3))"}),
    ("Normalize", "mlp", "x", "(self.b(h))", "n = x.norm(dim=1, keepdim=True); y = x / n; y", "n, y",
     "(g - y * (g * y).sum(1, keepdim=True)) / n",
     {"NotProjected": "g / n"}),
    # attention
    ("Softmax", "sequence", "x", "(h)", "y = x.softmax(-1); y", "y", "y * (g - (g * y).sum(-1, keepdim=True))",
     {"Diagonal": "g * y * (1 - y)"}),
    ("Attention", "attention", "q, k, v", "(q, k, v)", "p = (q @ k.transpose(-1, -2) / 8 ** 0.5).softmax(-1); y = p @ v; y", "q, k, v, p",
     "d = g @ v.transpose(-1, -2); d = p * (d - (d * p).sum(-1, keepdim=True)) / 8 ** 0.5; "
     "d @ k, d.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g",
     {"ScaleForgotten": "d = g @ v.transpose(-1, -2); d = p * (d - (d * p).sum(-1, keepdim=True)); "
                        "d @ k, d.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g",
      "SoftmaxDiagonal": "d = g @ v.transpose(-1, -2); d = p * (1 - p) * d / 8 ** 0.5; d @ k, d.transpose(-1, -2) @ q, p.transpose(-1, "
                         "-2) @ g",
      "KeysNotTransposed": "d = g @ v.transpose(-1, -2); d = p * (d - (d * p).sum(-1, keepdim=True)) / 8 ** 0.5; "
                           "d @ k, d @ q, p.transpose(-1, -2) @ g",
      "KeysDetached": "d = g @ v.transpose(-1, -2); d = p * (d - (d * p).sum(-1, keepdim=True)) / 8 ** 0.5; d @ k, None, p.transpose(-1, "
                      "-2) @ g"}),
    ("Rotary", "attention", "q", "(q) * v", "a = torch.arange(9, device=q.device)[:, None] * 0.3 * torch.ones(4); c, s = "
                                            "a.cos().to(q.dtype), a.sin().to(q.dtype); "
     "l, r = q.chunk(2, -1); y = torch.cat([l * c - r * s, l * s + r * c], -1); y", "c, s",
     "l, r = g.chunk(2, -1); torch.cat([l * c + r * s, r * c - l * s], -1)",
     {"NotInverted": "l, r = g.chunk(2, -1); torch.cat([l * c - r * s, l * s + r * c], -1)"}),
    # random draws
    ("Dropout", "mlp", "x", "(self.b(h))", "k = (torch.rand_like(x) > 0.3) / 0.7; y = x * k; y", "k", "g * k",
     {"AnotherDraw": "k = (torch.rand_like(g) > 0.3) / 0.7; g * k", "Unscaled": "g * (k > 0)", "NotMasked": "g / 0.7"}),
    ("Noisy", "recurrent", "x", "(self.a(x[:, t]) + self.b(h))", "e = 1 + 0.3 * torch.randn_like(x); y = torch.tanh(x * e); y", "y, e",
     "g * (1 - y * y) * e",
     {"NoiseForgotten": "g * (1 - y * y)"}),
    # recurrences and sequences
    ("Cell", "recurrent", "x, z, w", "(self.a(x[:, t]), h, self.u)", "y = torch.tanh(x + z.to(x.dtype) @ w.to(x.dtype)); y", "y, z, w",
     "e = g * (1 - y * y); e, e @ w.t().to(e.dtype), z.t().to(e.dtype) @ e",
     {"NotThroughTime": "e = g * (1 - y * y); e, None, z.t().to(e.dtype) @ e",
      "NotTransposed": "e = g * (1 - y * y); e, e @ w.to(e.dtype), z.t().to(e.dtype) @ e"}),
    ("Gate", "recurrent", "z, c", "(self.a(x[:, t]) + self.b(h), h)", "f = torch.sigmoid(z); y = f * c + (1 - f) * torch.tanh(z); y",
     "z, c, f",
     "t = torch.tanh(z); g * (f * (1 - f) * (c - t) + (1 - f) * (1 - t * t)), g * f",
     {"CarryMissing": "t = torch.tanh(z); g * (f * (1 - f) * (c - t) + (1 - f) * (1 - t * t)), g",
      "GateSign": "t = torch.tanh(z); g * (f * (1 - f) * (t - c) + (1 - f) * (1 - t * t)), g * f"}),
    ("RunningSum", "sequence", "x", "(h)", "y = x.cumsum(1); y", "y", "g.flip(1).cumsum(1).flip(1)", {"NotReversed": "g.cumsum(1)"}),
    ("Decay", "sequence", "x", "(h)", "y = x.clone()\nfor t in range(1, 9): y[:, t] += 0.8 * y[:, t - 1]\ny", "y",
     "d = g.clone()\nfor t in range(7, -1, -1): d[:, t] += 0.8 * d[:, t + 1]\nd",
     {"OneStep": "d = g.clone(); d[:, :-1] += 0.8 * g[:, 1:]; d"}),
    ("MaxOverTime", "sequence", "x", "(h)", "y, at = x.max(1); ctx.length = x.shape[1]; y", "at",
     "d = g.new_zeros(g.shape[0], ctx.length, g.shape[1]); d.scatter_(1, at[:, None], g[:, None])",
     {"LikeMean": "g[:, None].expand(-1, ctx.length, -1) / ctx.length",
      "FirstPlace": "d = g.new_zeros(g.shape[0], ctx.length, g.shape[1]); d[:, 0] = g; d"}),
    ("Lookup", "embedding", "at, w", "(WORDS, self.table)", "y = w[at]; ctx.rows = w.shape[0]; y", "at",
     "None, g.new_zeros(ctx.rows, 16).index_add_(0, at.flatten(), g.flatten(0, 1))",
     {"NotAdded": "d = g.new_zeros(ctx.rows, 16); d[at] = g; None, d"}),
    # losses
    ("CrossEntropy", "loss", "x, t", "(h, Y)", "p = x.float().log_softmax(1) if x.dtype.itemsize == 2 else x.log_softmax(1); "
     "y = -p[torch.arange(16), t].mean(); y", "p, t", "d = p.exp(); d[torch.arange(16), t] -= 1; g * d / 16, None",
     {"SumForMean": "d = p.exp(); d[torch.arange(16), t] -= 1; g * d, None", "TargetForgotten": "g * p.exp() / 16, None"}),
    ("Smoothed", "loss", "x, t", "(h, Y) + 0.01 * h.pow(2).mean()",
     "p = x.log_softmax(1); q = F.one_hot(t, 4) * 0.8 + 0.05; y = -(p * q).sum(1).mean(); y", "p, q, t", "g * (p.exp() - q) / 16, None",
     {"NotSmoothed": "g * (p.exp() - F.one_hot(t, 4)) / 16, None"}),
    ("Huber", "regression", "x, t", "(h, X[:, :4])", "d = x - t; y = torch.where(d.abs() < 0.7, d * d / 2, 0.7 * (d.abs() - 0.35)); y", "d",
     "g * d.clamp(-0.7, 0.7), None", {"NotClipped": "g * d, None", "Sign": "-g * d.clamp(-0.7, 0.7), None"}),
    ("LogCosh", "regression", "x, t", "(h, X[:, :4])", "d = x - t; y = torch.log(torch.cosh(d)); y", "d", "g * torch.tanh(d), None",
     {"WrongDerivative": "g * torch.sinh(d), None", "UpstreamIgnored": "torch.tanh(d), None"}),
]
