"""Steps for gradient_test.py, each by its name: python gradients.py NAME. RIGHT: the gradient is the derivative of the loss. WRONG: it is
not. MEANT: it is not, on purpose. Written as people write steps; nothing here knows how the check works.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
X, Y = torch.randn(16, 12), torch.randint(0, 4, (16,))
IMAGES, KINDS = torch.randn(8, 3, 16, 16), torch.randint(0, 4, (8,))
TEXTS = torch.randn(6, 9, 16)
WORDS = torch.randint(0, 20, (6, 9))
WORDS[:, 6:] = 0
RIGHT, WRONG, MEANT = {}, {}, {}


def case(table):
    def keep(make):
        table[make.__name__] = make
        return make

    return keep


def train(model, loss_of, optimizer=None, steps=2):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()


def perceptron():
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 4))


class Residual(nn.Module):
    """A block with `function` inside."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.c, self.function = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 4), function

    def forward(self, x):
        h = torch.relu(self.a(x))
        return self.c(torch.tanh(h + self.function(self.b(h))))


def function_of(name, forward, backward):
    """A Function of the script: backward(gradient, input, output)."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = forward(x)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    Function.__name__ = Function.__qualname__ = name
    return Function.apply


# ---- right

@case(RIGHT)
def dropout():
    m = perceptron()
    train(m, lambda: F.cross_entropy(m(X), Y))


@case(RIGHT)
def convolutions():
    m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2),
                      nn.GroupNorm(4, 16), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    train(m, lambda: F.cross_entropy(m(IMAGES), KINDS))


@case(RIGHT)
def transformer():
    m = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), nn.Linear(16, 4))
    train(m, lambda: F.cross_entropy(m(TEXTS).mean(1), Y[:6]))


@case(RIGHT)
def tied_and_causal():
    e, qkv, o, norm = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)
    m = nn.ModuleList([e, qkv, o, norm])

    def loss():
        t = e(WORDS)
        q, k, v = qkv(norm(t)).view(6, 9, 3, 2, 8).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(6, 9, 16)
        return F.cross_entropy(F.linear(t + o(a), e.weight)[:, :-1].reshape(-1, 20), WORDS[:, 1:].reshape(-1))

    train(m, loss)


@case(RIGHT)
def lstm():
    m = nn.ModuleList([nn.LSTM(16, 12, 2, batch_first=True), nn.Linear(12, 4)])
    train(m, lambda: F.cross_entropy(m[1](m[0](TEXTS)[0][:, -1]), Y[:6]))


@case(RIGHT)
def gru():
    m = nn.ModuleList([nn.GRU(16, 12, bidirectional=True, batch_first=True), nn.Linear(24, 4)])
    train(m, lambda: F.cross_entropy(m[1](m[0](TEXTS)[0].mean(1)), Y[:6]))


@case(RIGHT)
def accumulated():
    m = perceptron()
    o = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(2):
        o.zero_grad()
        for k in range(4):
            (F.cross_entropy(m(X[4 * k:4 * k + 4]), Y[4 * k:4 * k + 4]) / 4).backward()
        nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        o.step()


@case(RIGHT)
def bfloat16():
    m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 4))

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(m(IMAGES), KINDS)

    train(m, loss)


@case(RIGHT)
def scaled_float16():
    m = perceptron()
    o, s = torch.optim.SGD(m.parameters(), 0.1), torch.amp.GradScaler("cpu")
    for _ in range(2):
        o.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(m(X), Y)
        s.scale(loss).backward()
        s.step(o)
        s.update()


def _checkpointed(reentrant):
    a, b = nn.Linear(12, 24), nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 4))
    train(nn.ModuleList([a, b]), lambda: F.cross_entropy(checkpoint(b, torch.relu(a(X)), use_reentrant=reentrant), Y))


@case(RIGHT)
def checkpointed():
    _checkpointed(False)


@case(RIGHT)
def checkpointed_reentrant():
    _checkpointed(True)


@case(RIGHT)
def gradient_penalty():
    m = nn.Sequential(nn.Linear(12, 24), nn.Softplus(), nn.Linear(24, 1))

    def loss():
        z = X.clone().requires_grad_()
        g, = torch.autograd.grad(m(z).sum(), z, create_graph=True)
        return m(X).pow(2).mean() + ((g.norm(dim=1) - 1) ** 2).mean()

    train(m, loss)


@case(RIGHT)
def adversaries():
    g, d = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12)), nn.Sequential(nn.Linear(12, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
    og, od = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
    loss = F.binary_cross_entropy_with_logits
    for _ in range(2):
        fake = g(torch.randn(16, 5))
        od.zero_grad()
        (loss(d(X), torch.ones(16, 1)) + loss(d(fake.detach()), torch.zeros(16, 1))).backward()
        od.step()
        og.zero_grad()
        loss(d(fake), torch.ones(16, 1)).backward()
        og.step()


@case(RIGHT)
def teacher_by_average():
    s, t = perceptron(), perceptron()
    o = torch.optim.SGD(s.parameters(), 0.1)
    for _ in range(2):
        with torch.no_grad():
            target = t(X)
        o.zero_grad()
        (-F.cosine_similarity(s(X + 0.1), target).mean()).backward()
        o.step()
        with torch.no_grad():
            for p, q in zip(t.parameters(), s.parameters()):
                p.mul_(0.99).add_(q, alpha=0.01)


@case(RIGHT)
def stopped_gradient():
    m = perceptron()
    train(m, lambda: (m(X) - m(X + 0.1).detach()).pow(2).mean())


@case(RIGHT)
def rounded_and_detached():
    m = perceptron()

    def loss():
        w = m[0].weight
        return F.cross_entropy(m[3](F.gelu(F.linear(X, w + (torch.round(w * 8) / 8 - w).detach(), m[0].bias))), Y)

    train(m, loss)


@case(RIGHT)
def own_function():
    f = function_of("swish", lambda x: x * x.sigmoid(), lambda g, x, y: g * (x.sigmoid() + y * (1 - x.sigmoid())))
    m = Residual(f)
    train(m, lambda: F.cross_entropy(m(X), Y))


@case(RIGHT)
def normalised_weights():
    p = nn.utils.parametrizations
    m = nn.Sequential(p.spectral_norm(nn.Linear(12, 24)), nn.Tanh(), p.weight_norm(nn.Linear(24, 4)))
    train(m, lambda: F.cross_entropy(m(X), Y))


@case(RIGHT)
def in_place():
    a, b = nn.Linear(12, 24), nn.Linear(24, 4)

    def loss():
        h = F.relu(a(X), inplace=True).clone()
        h[:, :3] *= 2.0
        h[:, 5] = 0
        return F.cross_entropy(b(h), Y)

    train(nn.ModuleList([a, b]), loss)


@case(RIGHT)
def experts():
    g, e, out = nn.Linear(12, 4), nn.ModuleList([nn.Linear(12, 12) for _ in range(4)]), nn.Linear(12, 4)

    def loss():
        p = g(X).softmax(1)
        w, k = p.topk(2, 1)
        y = torch.zeros_like(X)
        for j in range(4):
            r, c = (k == j).nonzero(as_tuple=True)
            y = y.index_add(0, r, e[j](X[r]) * w[r, c][:, None])
        return F.cross_entropy(out(y), Y) + 0.04 * (p.mean(0) * F.one_hot(k[:, 0], 4).float().mean(0)).sum()

    train(nn.ModuleList([g, e, out]), loss)


@case(RIGHT)
def padded_words():
    m = nn.Sequential(nn.Embedding(20, 8, padding_idx=0), nn.Flatten(), nn.Linear(72, 4))
    nn.init.normal_(m[0].weight)
    train(m, lambda: F.cross_entropy(m(WORDS), Y[:6]))


@case(RIGHT)
def zeros_behind_a_relu():
    z = IMAGES.clone()
    z[:, :, :6] = 0
    m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 4))
    nn.init.zeros_(m[0].bias)
    train(m, lambda: F.cross_entropy(m(z), KINDS), steps=3)


@case(RIGHT)
def sharpness_aware():
    m = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))
    o = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(2):
        o.zero_grad()
        F.cross_entropy(m(X), Y).backward()
        with torch.no_grad():
            moves = [0.05 * p.grad / (p.grad.norm() + 1e-12) for p in m.parameters()]
            for p, e in zip(m.parameters(), moves):
                p.add_(e)
        o.zero_grad()
        F.cross_entropy(m(X), Y).backward()
        with torch.no_grad():
            for p, e in zip(m.parameters(), moves):
                p.sub_(e)
        o.step()


@case(RIGHT)
def step_within_a_step():
    m = nn.Linear(12, 4)

    def loss():
        g = torch.autograd.grad(F.cross_entropy(m(X[:8]), Y[:8]), list(m.parameters()), create_graph=True)
        w, b = (p - 0.1 * q for p, q in zip(m.parameters(), g))
        return F.cross_entropy(F.linear(X[8:], w, b), Y[8:])

    train(m, loss)


@case(RIGHT)
def sequence_loss():
    m, s, t = nn.Linear(16, 7), torch.randn(12, 3, 16), torch.randint(1, 7, (3, 4))
    train(m, lambda: F.ctc_loss(m(s).log_softmax(-1), t, torch.full((3,), 12), torch.full((3,), 4)))


@case(RIGHT)
def policy():
    p, v, r = nn.Linear(12, 4), nn.Linear(12, 1), torch.randn(16, 1)
    op, ov = torch.optim.Adam(p.parameters()), torch.optim.Adam(v.parameters())
    for _ in range(2):
        d = torch.distributions.Categorical(logits=p(X))
        a, gain = d.sample(), (r - v(X)).detach()
        op.zero_grad()
        ov.zero_grad()
        (-(d.log_prob(a)[:, None] * gain).mean() - 0.01 * d.entropy().mean()).backward()
        F.mse_loss(v(X), r).backward()
        op.step()
        ov.step()


# ---- meant

@case(MEANT)
def straight_through():
    f = function_of("rounded", lambda x: torch.round(x * 4) / 4, lambda g, x, y: g * (x.abs() < 4))
    m = Residual(f)
    train(m, lambda: F.cross_entropy(m(X), Y))


@case(MEANT)
def reversed_gradient():
    f = function_of("reversed", lambda x: x.view_as(x), lambda g, x, y: -0.5 * g)
    m = Residual(f)
    train(m, lambda: F.cross_entropy(m(X), Y))


@case(MEANT)
def hook_of_a_weight():
    m = perceptron()
    m[0].weight.register_hook(lambda g: g * 0.5)
    train(m, lambda: F.cross_entropy(m(X), Y))


@case(MEANT)
def hook_of_a_tensor():
    m = perceptron()

    def loss():
        h = m[0](X)
        h.register_hook(lambda g: g.clamp(-0.001, 0.001))
        return F.cross_entropy(m[3](F.gelu(h)), Y)

    train(m, loss)


@case(MEANT)
def scaled_by_frequency():
    m = nn.Sequential(nn.Embedding(20, 8, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(72, 4))
    train(m, lambda: F.cross_entropy(m(WORDS), Y[:6]))


# ---- wrong: Functions of one input, by the name that the report gives

def _softplus_slope(x):
    return torch.sigmoid(1.702 * x) + 1.702 * x * torch.sigmoid(1.702 * x) * (1 - torch.sigmoid(1.702 * x))


ONE_INPUT = {
    "a_missing_term": (torch.tanh, lambda g, x, y: g * (1 - y)),
    "a_factor": (torch.sigmoid, lambda g, x, y: 2 * g * y * (1 - y)),
    "a_sign": (torch.cos, lambda g, x, y: g * x.sin()),
    "a_mask_of_another_place": (lambda x: x.clamp(min=0), lambda g, x, y: g * (x > -1)),
    "another_approximation": (F.gelu, lambda g, x, y: g * _softplus_slope(x)),
    "softmax_by_its_diagonal": (lambda x: x.softmax(-1), lambda g, x, y: g * y * (1 - y)),
    "a_norm_without_its_mean": (lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True), lambda g, x, y: g / x.std(-1, keepdim=True)),
    "input_for_output": (torch.exp, lambda g, x, y: g * x),
    "a_row_left_out": (lambda x: x**3, lambda g, x, y: torch.cat([(3 * x * x * g)[:-1], torch.zeros_like(g[-1:])])),
}


def _of_one_input(name):
    def make(autocast=False):
        m = Residual(function_of(name, *ONE_INPUT[name]))

        def loss():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                return F.cross_entropy(m(X), Y)

        train(m, loss)

    return make


for _name in ONE_INPUT:
    WRONG[_name] = _of_one_input(_name)
WRONG["a_missing_term_in_bfloat16"] = lambda: _of_one_input("a_missing_term")(autocast=True)


def _dense(name, backward):
    class Dense(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, w, b):
            ctx.save_for_backward(h, w)
            return h @ w + b

        @staticmethod
        def backward(ctx, g):
            return backward(g, *ctx.saved_tensors)

    Dense.__name__ = Dense.__qualname__ = name

    def make():
        w, b = nn.Parameter(torch.randn(24, 24) * 0.1), nn.Parameter(torch.zeros(24))
        m = Residual(lambda h: Dense.apply(h, w, b))
        m.w, m.d = w, b
        train(m, lambda: F.cross_entropy(m(X), Y))

    WRONG[name] = make


@case(RIGHT)
def a_function_of_a_weight_that_is_detached():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(w)
            return x * w

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0], None

    m = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 4))
    m.w = nn.Parameter(torch.rand(12))
    train(m, lambda: F.cross_entropy(m[1](Scaled.apply(torch.tanh(m[0](X)), m.w.detach())), Y) + m.w.square().sum())


@case(MEANT)
def codes():
    """A quantizer: the nearest rows of a table, whose own loss is another one."""
    class Nearest(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, table):
            flat = x.view(-1, table.size(1))
            _, at = torch.min(torch.addmm((table ** 2).sum(1) + (flat ** 2).sum(1, keepdim=True), flat, table.t(), alpha=-2), dim=1)
            ctx.mark_non_differentiable(at)
            return table.index_select(0, at).view_as(x), at

        @staticmethod
        def backward(ctx, g, _):
            return g.clone(), None

    m = nn.Sequential(nn.Linear(12, 24), nn.Linear(24, 4), nn.Embedding(7, 6))

    def loss():
        of_rows = torch.tanh(m[0](X)).view(16, 4, 6).transpose(1, 2).contiguous().transpose(1, 2).contiguous()
        code, at = Nearest.apply(of_rows, m[2].weight.detach())
        return F.cross_entropy(m[1](code.flatten(1)), Y) + F.mse_loss(m[2].weight.index_select(0, at).view_as(code), of_rows.detach())

    train(m, loss)


@case(MEANT)
def a_reversal_before_a_batch_norm_that_is_used_twice():
    m = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.Linear(24, 4))
    reverse = function_of("reverse", lambda x: x.view_as(x), lambda g, x, y: -g)
    train(m, lambda: sum(F.cross_entropy(m[2](m[1](reverse(torch.tanh(m[0](x))))), Y[:8]) for x in (X[:8], X[8:])))


_dense("a_weight_not_transposed", lambda g, h, w: (g @ w, h.T @ g, g.sum(0)))
_dense("a_sum_left_out", lambda g, h, w: (g @ w.T, h.T @ g, g[0]))
_dense("a_mean_for_a_sum", lambda g, h, w: (g @ w.T, h.T @ g / len(h), g.sum(0)))


def changed_behind_autograd():
    m = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))

    def loss():
        h = m[1](m[0](X[:8]))
        y = m[2](h)
        h.data.mul_(0.5)
        return F.cross_entropy(y, Y[:8])

    train(m, loss)


# ---- several Functions, one of which may be meant; some whose backward pass makes no call

class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (x.abs() < 1)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class Mark(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Reversed(Mark):
    @staticmethod
    def backward(ctx, g):
        return -g


class Leaky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, 0.1 * x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return torch.where(x > 0, g, 0.01 * g)


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        return g


def _chain(*functions):
    def make():
        def apply(h):
            for f in functions:
                h = 0.9 * f.apply(h)
            return h

        m = Residual(apply)
        train(m, lambda: F.cross_entropy(m(X), Y))

    return make


RIGHT.update(a_swish_and_a_mark=_chain(Swish, Mark))
MEANT.update(a_sign_and_a_reversal=_chain(Sign, Reversed), a_swish_before_a_sign=_chain(Swish, Sign), a_swish_before_a_step=_chain(Swish, Clipped),
             a_step_before_a_swish=_chain(Clipped, Mark, Swish))
WRONG.update(Leaky=_chain(Leaky), Leaky_after_a_step=_chain(Clipped, Leaky), Leaky_after_a_sign=_chain(Sign, Swish, Leaky),
             Leaky_before_a_reversal=_chain(Leaky, Reversed), Exp=_chain(Exp, Mark), Exp_after_a_sign=_chain(Sign, Exp))


if __name__ == "__main__":
    {**RIGHT, **MEANT, **WRONG, "changed_behind_autograd": changed_behind_autograd}[sys.argv[1]]()
