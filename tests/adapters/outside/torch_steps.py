"""Whole steps of PyTorch: name: (what is set up, the loss), and where the loop is another one than scripts.py writes, the loop. Texts,
because each is a script of its own (scripts.py, which says what X, Y, IMAGES, ... are).
"""

BLOCK = "nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Dropout(0.2), nn.Linear(24, 4))"
ENDS = f"m = nn.ModuleList([nn.Linear(12, 24), {BLOCK}])"
MLP = "m = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 4))"
SHUT = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x{more}):
        {forward}
    @staticmethod
    def backward(ctx, g):
        {backward}
"""
# A checkpoint as people write it themselves; {keep} and {restore}: the state of the random numbers.
CHECKPOINT = SHUT.format(
    name="Recomputed", more=", *weights",
    forward="ctx.save_for_backward(x){keep}\n        with torch.no_grad():\n            return m[1](x)",
    backward="x = ctx.saved_tensors[0].detach().requires_grad_(){restore}\n        with torch.enable_grad():\n            y = m[1](x)\n"
             "        return torch.autograd.grad(y, (x, *m[1].parameters()), g)")
OWN_CHECKPOINT = "F.cross_entropy(Recomputed.apply(torch.relu(m[0](X)), *m[1].parameters()), Y)"
STRAIGHT = SHUT.format(name="Rounded", more="", forward="return torch.round(x * 4) / 4", backward="return g")
SIGN = SHUT.format(name="Sign", more="", forward="ctx.save_for_backward(x)\n        return x.sign()",
                   backward="x, = ctx.saved_tensors\n        return g * (x.abs() < 1)")
REVERSED = SHUT.format(name="Reversed", more="", forward="return x.view_as(x)", backward="return -0.3 * g")
SWISH = SHUT.format(name="Swish", more="", forward="ctx.save_for_backward(x)\n        return x * x.sigmoid()",
                    backward="x, = ctx.saved_tensors\n        s = x.sigmoid()\n        return g * (s + x * s * (1 - s))")
BAD_SWISH = SWISH.replace("(s + x * s * (1 - s))", "s").replace("Swish", "BadSwish")
ACT = "m = nn.Sequential(nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 4))\n"
THROUGH = "F.cross_entropy(m[2]({}.apply(m[1](torch.tanh(m[0](X))))), Y)"
# Classes of one qualified name, as factories make them.
FACTORY = """
def activation(beta):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * torch.sigmoid(beta * x)
        @staticmethod
        def backward(ctx, g):
            x, = ctx.saved_tensors
            s = torch.sigmoid(beta * x)
            return g * (s + {factor} * x * s * (1 - s))
    return Scaled.apply
first, second = activation(1.0), activation(2.0)
"""
BOTH = "F.cross_entropy(m[2](second(m[1](first(m[0](X))))), Y)"
COMPILED = ("{}\n@torch.compile(backend=\"{}\")\ndef forward(x):\n    return m[2]({}.apply(m[1](torch.tanh(m[0](x)))))")
ACCUMULATED = """
        for k in range(4):
            with autocast():
                loss = F.cross_entropy(m(X[4 * k:4 * k + 4]), Y[4 * k:4 * k + 4]) / 4
            scaler.scale(loss).backward()"""
HOOKED = "h = m[0](X)\n    h.register_hook(lambda g: {})\n    loss = F.cross_entropy(m[2](torch.tanh(h)), Y)"

RIGHT = {
    "function_in_a_reentrant_checkpoint": (ACT + SWISH, "F.cross_entropy(m[2](checkpoint(lambda x: Swish.apply(m[1](x)), "
                                                        "torch.tanh(m[0](X)), "
                                                        "use_reentrant=True)), Y)"),
    "two_reentrant_checkpoints": (ACT + SWISH, "F.cross_entropy(m[2](checkpoint(Swish.apply, checkpoint(lambda x: m[1](Swish.apply(x)), "
                                               "torch.tanh(m[0](X)), use_reentrant=True), use_reentrant=True)), Y)"),
    "compiled_dropout": ("m = nn.Sequential(nn.Linear(12, 24), nn.Dropout(0.2), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 4))\n"
                         "c = torch.compile(m)", "F.cross_entropy(c(X), Y)"),
    "checkpoint": (ENDS, "F.cross_entropy(checkpoint(m[1], torch.relu(m[0](X)), use_reentrant=False), Y)"),
    "checkpoint_reentrant": (ENDS, "F.cross_entropy(checkpoint(m[1], torch.relu(m[0](X)), use_reentrant=True), Y)"),
    "own_checkpoint": (ENDS + CHECKPOINT.format(keep="\n        ctx.state = torch.get_rng_state()",
                                                restore="\n        torch.set_rng_state(ctx.state)"), OWN_CHECKPOINT),
    "dropout_cnn": ("m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.3), nn.MaxPool2d(2), nn.Flatten(), "
                    "nn.Linear(200, 4))", "F.cross_entropy(m(IMAGES), KINDS)"),
    "sdpa": ("m = nn.ModuleList([nn.Linear(16, 48), nn.Linear(16, 4)])",
             "F.cross_entropy(m[1](F.scaled_dot_product_attention(*m[0](TEXTS).view(4, 9, 3, 2, 8).permute(2, 0, 3, 1, 4), is_causal=True)"
             ".transpose(1, 2).reshape(4, 9, 16)).mean(1), Y[:4])"),
    "multihead": ("m = nn.ModuleList([nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True), nn.Linear(16, 4)])",
                  "F.cross_entropy(m[1](m[0](TEXTS, TEXTS, TEXTS)[0]).mean(1), Y[:4])"),
    "decoder": ("m = nn.ModuleList([nn.TransformerDecoderLayer(16, 2, 32, batch_first=True), nn.Linear(16, 4)])",
                "F.cross_entropy(m[1](m[0](TEXTS, TEXTS.flip(0))).mean(1), Y[:4])"),
    "lstm": ("m = nn.ModuleList([nn.LSTM(16, 12, 2, batch_first=True), nn.Linear(12, 4)])",
     "F.cross_entropy(m[1](m[0](TEXTS)[0][:, -1]), Y[:4])"),
    "gru": ("m = nn.ModuleList([nn.GRU(16, 12, bidirectional=True, batch_first=True), nn.Linear(24, 4)])",
            "F.cross_entropy(m[1](m[0](TEXTS)[0].mean(1)), Y[:4])"),
    "compiled": ("m = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 4))\nc = torch.compile(m)", "F.cross_entropy(c(X), Y)"),
    "compiled_function": (COMPILED.format(ACT + SWISH, "inductor", "Swish"), "F.cross_entropy(forward(X), Y)"),
    "compiled_function_aot": (COMPILED.format(ACT + SWISH, "aot_eager", "Swish"), "F.cross_entropy(forward(X), Y)"),
    "lora": (MLP + "\nfor p in m.parameters(): p.requires_grad_(False)\nm.r, m.s = nn.Parameter(torch.randn(12, 3) * 0.3), nn.Parameter("
             "torch.randn(3, 24) * 0.1)", "F.cross_entropy(m[2](torch.tanh(m[0](X) + 2 * (X @ m.r @ m.s))), Y)"),
    "gradient_penalty": ("m = nn.Sequential(nn.Linear(12, 24), nn.Softplus(), nn.Linear(24, 1))\nz = X.clone().requires_grad_()",
                         "m(X).pow(2).mean() + (torch.autograd.grad(m(z).sum(), z, create_graph=True)[0].norm(dim=1) - 1).pow(2).mean()"),
    "hessian_product": (MLP, "torch.autograd.grad(F.cross_entropy(m(X), Y), m[0].weight, create_graph=True)[0].pow(2).sum()"),
    "weight_norm": ("m = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(12, 24)), nn.Tanh(), nn.Linear(24, 4))",
                    "F.cross_entropy(m(X), Y)"),
    "average_of_weights": (MLP + "\nteacher = copy.deepcopy(m)\nfor p in teacher.parameters(): p.requires_grad_(False)",
                           "F.kl_div(m(X).log_softmax(1), teacher(X).softmax(1), reduction=\"batchmean\") + F.cross_entropy(m(X), Y)", """
        optimizer.zero_grad()
        with autocast():
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for p, q in zip(teacher.parameters(), m.parameters()):
                p.lerp_(q, 0.01)"""),
    "accumulation": (MLP, "F.cross_entropy(m(X), Y)", "\n        optimizer.zero_grad()" + ACCUMULATED
                     + "\n        scaler.step(optimizer)\n        scaler.update()"),
    "clipping": (MLP, "F.cross_entropy(m(X), Y)", """
        optimizer.zero_grad()
        with autocast():
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()"""),
    "functional_call": (MLP, "F.cross_entropy(torch.func.functional_call(m, {k: 1.1 * v for k, v in m.named_parameters()}, (X,)), Y)"),
    "vmap": ("m = nn.ParameterList([nn.Parameter(torch.randn(3, 4, 12) * 0.2)])",
             "F.cross_entropy(torch.func.vmap(lambda w: F.gelu(F.linear(X, w)))(m[0]).mean(0), Y)"),
    "tied": ("m = nn.ModuleList([nn.Embedding(20, 16), nn.LayerNorm(16)])",
             "F.cross_entropy(F.linear(m[1](m[0](WORDS)), m[0].weight)[:, :-1].reshape(-1, 20), WORDS[:, 1:].reshape(-1))"),
    "embedding_bag": ("m = nn.ModuleList([nn.EmbeddingBag(20, 16, mode=\"mean\"), nn.Linear(16, 4)])",
     "F.cross_entropy(m[1](m[0](WORDS)), Y[:4])"),
    "in_place": ("m = nn.Sequential(nn.Linear(12, 24), nn.ReLU(inplace=True), nn.Linear(24, 4), nn.ELU(inplace=True))",
     "F.cross_entropy(m(X), Y)"),
    "transposed": ("m = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 3, "
                   "4, 2, 1))",
                   "F.smooth_l1_loss(m(IMAGES), IMAGES)"),
    "contrastive": (MLP, "F.cross_entropy(F.normalize(m(X)) @ F.normalize(m(X + 0.1)).t() / 0.2, torch.arange(16))"),
    "gumbel": (MLP, "F.mse_loss(F.gumbel_softmax(m(X), 0.7), F.one_hot(Y, 4).to(X.dtype))"),
    "variational": ("m = nn.ModuleList([nn.Linear(12, 8), nn.Linear(4, 12)])\ndef parts(): return m[0](X).chunk(2, 1)",
                    "(lambda a, b: F.mse_loss(m[1](a + torch.randn_like(a) * (b / 2).exp()), X) - 0.05 * (1 + b - a * a - "
                    "b.exp()).mean())(*parts())"),
    "functions_of_one_name": (ACT + FACTORY.format(factor="beta"), BOTH),
    "root_with_gradient": (MLP, "F.cross_entropy(m(X), Y, reduction=\"none\")", """
        optimizer.zero_grad()
        with autocast():
            loss = loss_of()
        loss.backward(gradient=torch.full_like(loss, 1 / 16))
        optimizer.step()"""),
    "weighted_root": (MLP, "F.cross_entropy(m(X), Y)", """
        optimizer.zero_grad()
        with autocast():
            loss = loss_of()
        loss.backward(torch.tensor(0.5))
        optimizer.step()"""),
}

# No derivative: told so, by the Function or hook, or held fixed by the script itself (a detached part). None of them is accused.
MEANT = {
    "compiled_straight_through": (COMPILED.format(ACT + STRAIGHT, "inductor", "Rounded"), "F.cross_entropy(forward(X), Y)"),
    "compiled_detached": (MLP + "\nc = torch.compile(lambda x: m(x) * m(x).softmax(1).detach())", "F.cross_entropy(c(X), Y)"),
    "hard_gumbel": (MLP, "F.mse_loss(F.gumbel_softmax(m(X), 0.7, hard=True), F.one_hot(Y, 4).to(X.dtype))"),
    "spectral_norm": ("m = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(12, 24)), nn.Tanh(), nn.Linear(24, 4))",
                      "F.cross_entropy(m(X), Y)"),
    "straight_through": (ACT + STRAIGHT, THROUGH.format("Rounded")),
    "sign": (ACT + SIGN, THROUGH.format("Sign")),
    "reversed": (ACT + REVERSED, THROUGH.format("Reversed")),
    "straight_through_before_a_swish": (ACT + STRAIGHT + SWISH, THROUGH.format("Swish").replace("m[0](X)", "Rounded.apply(m[0](X))")),
    "hook_of_a_weight": (MLP + "\nm[0].weight.register_hook(lambda g: 0.5 * g)", "F.cross_entropy(m(X), Y)"),
    "hook_of_a_value": (MLP, "hooked()", None, "def hooked():\n    " + HOOKED.format("2 * g") + "\n    return loss"),
}

# Wrong ones: with what the first finding must name.
WRONG = {
    "own_checkpoint_without_random_state": ((ENDS + CHECKPOINT.format(keep="", restore=""), OWN_CHECKPOINT), "Recomputed"),
    "functions_of_one_name": ((ACT + FACTORY.format(factor="1"), BOTH), "Scaled"),
    "a_wrong_one_after_a_straight_through": (
        (ACT + STRAIGHT + BAD_SWISH, THROUGH.format("BadSwish").replace("m[0](X)", "Rounded.apply(m[0](X))")), "BadSwish"),
    "compiled": ((COMPILED.format(ACT + BAD_SWISH, "inductor", "BadSwish"), "F.cross_entropy(forward(X), Y)"), "BadSwish"),
    "compiled_aot": ((COMPILED.format(ACT + BAD_SWISH, "aot_eager", "BadSwish"), "F.cross_entropy(forward(X), Y)"), "BadSwish"),
    "compiled_eager": ((COMPILED.format(ACT + BAD_SWISH, "eager", "BadSwish"), "F.cross_entropy(forward(X), Y)"), "BadSwish"),
    "behind_autograd": ((MLP + "\ndef changed():\n    h = m[1](m[0](X))\n    y = m[2](h)\n    h.data.mul_(0.5)\n    return y",
                         "F.cross_entropy(changed(), Y)"), r"h\.data\.mul_\(0\.5\)"),
    "weight_behind_autograd": ((MLP + "\ndef changed():\n    y = m(X)\n    m[2].weight.data.mul_(0.9)\n    return y",
                                "F.cross_entropy(changed(), Y)"), r"m\[2\]\.weight\.data\.mul_"),
    "gradient_in_place": ((ACT + SHUT.format(name="Halved", more="", forward="return x * 0.5", backward="return g.mul_(0.5)")
                           + "def summed():\n    h = torch.tanh(m[0](X))\n    return m[2](m[1](h) + Halved.apply(h))",
                           "F.cross_entropy(summed(), Y)"), "Halved"),
    "checkpoint_without_random_state": ((ENDS, "F.cross_entropy(checkpoint(m[1], torch.relu(m[0](X)), use_reentrant=False, "
                                               "preserve_rng_state=False), Y)"), ""),
    "reentrant_without_random_state": ((ENDS, "F.cross_entropy(checkpoint(m[1], torch.relu(m[0](X)), use_reentrant=True, "
                                              "preserve_rng_state=False), Y)"), ""),
    "reentrant_with_a_wrong_one": ((ACT + BAD_SWISH, "F.cross_entropy(m[2](checkpoint(lambda x: BadSwish.apply(m[1](x)), "
                                                     "torch.tanh(m[0](X)), "
                                                     "use_reentrant=True)), Y)"), "BadSwish"),
    "root_with_gradient": ((ACT + BAD_SWISH, THROUGH.format("BadSwish").replace("Y)", "Y, reduction=\"none\")"),
                            RIGHT["root_with_gradient"][2]), "BadSwish"),
}

# Steps that are what they are called in float32 alone: autocast is over in a backward pass, and keeps a cast of a weight that is
# overwritten.
FLOAT32 = {"own_checkpoint", "own_checkpoint_without_random_state", "weight_behind_autograd"}
