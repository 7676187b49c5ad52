"""custom_vjp and custom_jvp rules of JAX, each in a small training step, with a right rule and wrong ones; and whole steps. A row is

    name, host, arguments, call, function, what the forward rule keeps, the right backward rule, {mistake: a wrong one}

as in torch_functions.py. Where None is kept, the rule is a custom_jvp's: of x and its tangent t.
"""

# The loss, of the weights w and a batch x, y, whose type is that of the step.
HOSTS = {
    "mlp": """    h = jnp.tanh(x @ w["a"])
    h = h + {call}
    return jnp.mean((h @ w["c"] - y) ** 2)""",
    "conv": """    h = lax.conv_general_dilated(x.reshape(2, 4, 6, 2), w["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = {call}
    return jnp.mean((jnp.tanh(h).sum((1, 2)) @ w["c"] - y[:2]) ** 2)""",
    "attention": """    q, k, v = (x @ w[i] for i in "ade")
    h = {call}
    return jnp.mean((jnp.tanh(h) @ w["c"] - y) ** 2)""",
    "recurrent": """    def cell(h, i):
        h = {call}
        return h, None

    h = lax.scan(cell, jnp.zeros_like(w["a"][0]), x @ w["a"])[0]
    return jnp.mean((h @ w["c"] - y[0]) ** 2)""",
    "embedding": """    h = {call}
    return jnp.mean((jnp.tanh(h @ w["b"]) @ w["c"] - y) ** 2)""",
    "loss": """    h = jnp.tanh(x @ w["a"]) @ w["c"]
    return {call}""",
}

FUNCTIONS = [
    ("swish", "mlp", "x", "(h @ w['b'])", "y = x * S(x); y", "x", "(g * S(x) * (1 + x * (1 - S(x))),)",
     {"missing_term": "(g * S(x),)", "sign": "(g * S(x) * (1 - x * (1 - S(x))),)"}),
    ("gelu", "mlp", "x", "(h @ w['b'])", "y = x * 0.5 * (1 + lax.erf(x / 2 ** 0.5)); y", "x",
     "(g * (0.5 * (1 + lax.erf(x / 2 ** 0.5)) + x * jnp.exp(-x * x / 2) * 0.3989422804014327),)", {"quick": "(g * S(1.702 * x),)"}),
    ("dense", "mlp", "x, m", "(h, w['b'])", "y = x @ m; y", "x, m", "g @ m.T, x.T @ g",
     {"not_transposed": "g @ m, x.T @ g", "other_transposed": "g @ m.T, g.T @ x", "mean": "g @ m.T, x.T @ g / len(x)",
      "detached": "jnp.zeros_like(x), x.T @ g"}),
    ("scale", "conv", "x, m", "(h, w['s'])", "y = x * m; y", "x, m", "g * m, (g * x).sum((0, 1, 2))",
     {"not_summed": "g * m, (g * x)[0].sum((0, 1))", "mean": "g * m, (g * x).mean((0, 1, 2))"}),
    ("product", "mlp", "x, z", "(h @ w['b'], h)", "y = x * z; y", "x, z", "g * z, g * x", {"swapped": "g * x, g * z"}),
    ("layer_norm", "mlp", "x, m", "(h @ w['b'], w['s'])",
     "i = lax.rsqrt(x.var(-1, keepdims=True) + 1e-5); n = (x - x.mean(-1, keepdims=True)) * i; y = n * m; y", "n, i, m",
     "e = g * m; (e - e.mean(-1, keepdims=True) - n * (e * n).mean(-1, keepdims=True)) * i, (g * n).sum(0)",
     {"no_variance": "e = g * m; (e - e.mean(-1, keepdims=True)) * i, (g * n).sum(0)",
      "no_mean": "e = g * m; (e - n * (e * n).mean(-1, keepdims=True)) * i, (g * n).sum(0)"}),
    ("normalize", "mlp", "x", "(h @ w['b'])", "n = jnp.sqrt((x * x).sum(-1, keepdims=True)); y = x / n; y", "y, n",
     "((g - y * (g * y).sum(-1, keepdims=True)) / n,)", {"not_projected": "(g / n,)"}),
    ("softmax", "attention", "s", "(q @ k.T / 8 ** 0.5) @ v", "y = jax.nn.softmax(s); y", "y",
     "(y * (g - (g * y).sum(-1, keepdims=True)),)", {"diagonal": "(g * y * (1 - y),)"}),
    ("attend", "attention", "q, k, v", "(q, k, v)", "p = jax.nn.softmax(q @ k.T / 8 ** 0.5); y = p @ v; y", "q, k, v, p",
     "d = g @ v.T; d = p * (d - (d * p).sum(-1, keepdims=True)) / 8 ** 0.5; d @ k, d.T @ q, p.T @ g",
     {"unscaled": "d = g @ v.T; d = p * (d - (d * p).sum(-1, keepdims=True)); d @ k, d.T @ q, p.T @ g",
      "keys_not_transposed": "d = g @ v.T; d = p * (d - (d * p).sum(-1, keepdims=True)) / 8 ** 0.5; d @ k, d @ q, p.T @ g"}),
    ("drop", "mlp", "x", "(h @ w['b'])", "k = jax.random.bernoulli(jax.random.PRNGKey(1), 0.7, x.shape) / 0.7; y = x * "
                                         "k.astype(x.dtype); y", "k",
     "(g * k.astype(g.dtype),)",
     {"another_draw": "(g * (jax.random.bernoulli(jax.random.PRNGKey(2), 0.7, g.shape) / 0.7).astype(g.dtype),)",
      "unscaled": "(g * (k > 0),)"}),
    ("gate", "recurrent", "z, c", "(i + h @ w['b'], h)", "f = S(z); y = f * c + (1 - f) * jnp.tanh(z); y", "z, c, f",
     "t = jnp.tanh(z); g * (f * (1 - f) * (c - t) + (1 - f) * (1 - t * t)), g * f",
     {"carry": "t = jnp.tanh(z); g * (f * (1 - f) * (c - t) + (1 - f) * (1 - t * t)), g",
      "sign": "t = jnp.tanh(z); g * (f * (1 - f) * (t - c) + (1 - f) * (1 - t * t)), g * f"}),
    ("running_sum", "attention", "x", "(v)", "y = jnp.cumsum(x, 0); y", "y", "(jnp.flip(jnp.cumsum(jnp.flip(g, 0), 0), 0),)",
     {"not_reversed": "(jnp.cumsum(g, 0),)"}),
    ("lookup", "embedding", "m", "(w['table'])", "y = m[AT]; y", "m", "(jnp.zeros_like(m).at[AT].add(g),)",
     {"not_added": "(jnp.zeros_like(m).at[AT].set(g),)"}),
    ("clip", "mlp", "x", "(h @ w['b'])", "y = jnp.clip(x, -0.5, 0.5); y", "x", "(g * (jnp.abs(x) < 0.5),)",
     {"one_sided": "(g * (x < 0.5),)"}),
    ("huber", "loss", "x, z", "(h, y)", "d = x - z; y = jnp.where(jnp.abs(d) < 0.7, d * d / 2, 0.7 * (jnp.abs(d) - 0.35)).mean(); y", "d",
     "e = g * jnp.clip(d, -0.7, 0.7) / d.size; e, -e", {"not_clipped": "e = g * d / d.size; e, -e",
      "sum": "e = g * jnp.clip(d, -0.7, 0.7); e, -e"}),
    ("most", "attention", "x", "(v)", "y = x.max(0); y", "x, y", "(jnp.where(x == y, g, 0),)",
     {"like_mean": "(jnp.broadcast_to(g / len(x), x.shape),)"}),
    ("root", "mlp", "x", "(h @ w['b'])", "y = jnp.sqrt(1 + x * x); y", None, "t * x / jnp.sqrt(1 + x * x)",
     {"unsquared": "t * x", "sign": "-t * x / jnp.sqrt(1 + x * x)"}),
    ("bent", "recurrent", "x", "(i + h @ w['b'])", "y = jnp.tanh(x); y", None, "t * (1 - jnp.tanh(x) ** 2)",
     {"unsquared": "t * (1 - jnp.abs(jnp.tanh(x)))"}),
    ("decayed", "conv", "x", "(h)", "y = x * jnp.exp(-x * x); y", None, "t * jnp.exp(-x * x) * (1 - 2 * x * x)",
     {"factor": "t * jnp.exp(-x * x) * (1 - x * x)"}),
]

# name: (what is defined before, the loss's body, and the gradients where not those of value_and_grad)
RIGHT = {
    "scan": ("", "    return jnp.mean((lax.scan(lambda h, i: (jnp.tanh(i + h @ w['b']), None), x[0] @ w['a'], x @ w['a'])[0] @ w['c'] - "
                 "y[0]) ** 2)"),
    "remat": ("", "    return jnp.mean((jax.checkpoint(lambda h: jnp.tanh(h @ w['b']) * h)(x @ w['a']) @ w['c'] - y) ** 2)"),
    "vmap": ("", "    return jax.vmap(lambda a, b: jnp.mean((jax.nn.gelu(a @ w['a']) @ w['c'] - b) ** 2))(x, y).mean()"),
    "cond": ("", "    h = x @ w['a']\n    return jnp.mean((lax.cond(h.sum() > 0, jnp.sin, jnp.cos, h) @ w['c'] - y) ** 2)"),
    "loop": ("", "    h = lax.fori_loop(0, 3, lambda i, h: jnp.sin(h @ w['b']), x @ w['a'])\n    return jnp.mean((h @ w['c'] - y) ** 2)"),
    "jitted": ("inner = jax.jit(lambda h, b: jax.nn.silu(h @ b))\n", "    return jnp.mean((inner(x @ w['a'], w['b']) @ w['c'] - y) ** 2)"),
    "associative": ("", "    h = lax.associative_scan(jnp.add, jnp.tanh(x @ w['a']))\n    return jnp.mean((h @ w['c'] - y) ** 2)"),
    "causal": ("", "    q, k, v = (x @ w[i] for i in 'ade')\n    s = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ k.T / 3, -1e4)\n"
                   "    return jnp.mean((jax.nn.softmax(s) @ v @ w['c'] - y) ** 2)"),
    "dropout": ("", "    h = jnp.tanh(x @ w['a'])\n    h = jnp.where(jax.random.bernoulli(jax.random.PRNGKey(3), 0.8, h.shape), h / 0.8, "
                    "0)\n"
                    "    return jnp.mean((h @ w['c'] - y) ** 2)"),
    "penalty": ("", "    f = lambda x: (jnp.tanh(x @ w['a']) @ w['c']).sum()\n    return jnp.mean((jnp.linalg.norm(jax.grad(f)(x), "
                    "axis=1) - 1) ** 2)"),
    "sorted": ("", "    return jnp.mean((jnp.sort(x @ w['a'], -1) @ w['c'] - y) ** 2)"),
    "pooled": ("", "    h = lax.conv_general_dilated(x.reshape(2, 4, 6, 2), w['k'], (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', "
                   "'NHWC'))\n"
                   "    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')\n"
                   "    return jnp.mean((h.sum((1, 2)) @ w['c'] - y[:2]) ** 2)"),
    "named_argument": ("import functools\n\n\n@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))\ndef power(x, n):\n    return x "
                       "** n\n\n\n"
                       "power.defvjp(lambda x, n: (x ** n, x), lambda n, x, g: (g * n * x ** (n - 1),))\n",
                       "    return jnp.mean((power(jnp.tanh(x @ w['a']), 3) @ w['c'] - y) ** 2)"),
    "library_rules": ("", "    h = jax.nn.relu(x @ w['a'])\n    return jnp.mean((jax.nn.logsumexp(h @ w['b'], -1, keepdims=True) * "
                          "jax.nn.softplus(h) @ w['c'] - y) ** 2)"),
}
# No derivative: a rule that is meant to be none, or something that the script holds fixed.
MEANT = {
    "target": ("", "    h = jnp.tanh(x @ w['a'])\n    return jnp.mean((h @ w['c'] - y - 0.1 * lax.stop_gradient(jnp.tanh(x @ w['d']) @ "
                   "w['c'])) ** 2)"),
    "straight_through": ("", "    h = x @ w['a']\n    h = h + lax.stop_gradient(jnp.round(h) - h)\n    return jnp.mean((h @ w['c'] - y) "
                             "** 2)"),
    "reversed": ("@jax.custom_vjp\ndef reverse(x):\n    return x\n\n\nreverse.defvjp(lambda x: (x, None), lambda _, g: (-g,))\n",
                 "    return jnp.mean((reverse(jnp.tanh(x @ w['a'])) @ w['c'] - y) ** 2)"),
    "rounded": ("@jax.custom_vjp\ndef rounded(x):\n    return jnp.round(4 * x) / 4\n\n\nrounded.defvjp(lambda x: (rounded(x), None), "
                "lambda _, g: (g,))\n",
                "    return jnp.mean((rounded(jnp.tanh(x @ w['a'])) @ w['c'] - y) ** 2)"),
}
