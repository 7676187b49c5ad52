"""Functions that are composed of several calls and have a documented definition. Each is recorded under its name in
torch.nn.functional, with the arguments that its signature names."""
import inspect

import torch
import torch.nn.functional as F

NAMES = ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
         "smooth_l1_loss", "huber_loss", "kl_div", "layer_norm", "group_norm", "batch_norm", "softmax", "log_softmax", "gelu",
         "scaled_dot_product_attention", "multi_head_attention_forward", "cosine_similarity", "normalize", "triplet_margin_loss",
         "embedding")
WITHOUT_BYTES = ("multi_head_attention_forward",)
DEPRECATED = ("size_average", "reduce", "_stacklevel")
_CONV = (("input",), ("weight",), ("bias", None), ("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1))
# Functions that are written in C++ have no signature in Python.
BUILTIN = {
    "gelu": (("input",), ("approximate", "none")),
    "scaled_dot_product_attention": (("query",), ("key",), ("value",), ("attn_mask", None), ("dropout_p", 0.0), ("is_causal", False),
                                     ("scale", None), ("enable_gqa", False)),
    "cosine_similarity": (("x1",), ("x2",), ("dim", 1), ("eps", 1e-8)),
    "linear": (("input",), ("weight",), ("bias", None)), "conv1d": _CONV, "conv2d": _CONV,
    "conv_transpose2d": _CONV[:5] + (("output_padding", 0), ("groups", 1), ("dilation", 1)),
    "matmul": (("input",), ("other",)), "relu": (("input",),),
    "softmax": (("input",), ("dim", None), ("dtype", None)), "log_softmax": (("input",), ("dim", None), ("dtype", None))}


class Function:
    """One of them; has what encode.py needs of a schema."""
    known, fresh, view, undeclared, out, positions, keywords = True, False, False, None, False, (), ()

    def __init__(self, name, func, builtin=False):
        self.short, self.name = name, f"torch.nn.functional.{name}"
        self.parameters = None
        if not builtin:
            try:
                self.parameters = inspect.signature(func).parameters
            except (TypeError, ValueError):
                pass
        if self.parameters is not None and not any(p.kind is p.VAR_POSITIONAL for p in self.parameters.values()):
            self.defaults = [(n, p.default) for n, p in self.parameters.items() if p.kind is not p.VAR_KEYWORD]
        else:
            self.defaults = [(row[0], row[1] if len(row) > 1 else inspect.Parameter.empty) for row in BUILTIN.get(name, ())]

    def named(self, args, kwargs):
        """Returns all arguments by name; what they leave to a default too."""
        if len(args) > len(self.defaults):
            raise TypeError(f"{self.name}: {len(args)} arguments; expected at most {len(self.defaults)}")
        found = {}
        for i, (name, default) in enumerate(self.defaults):
            value = args[i] if i < len(args) else kwargs.get(name, default)
            if value is inspect.Parameter.empty or (name in DEPRECATED and (value is None or name == "_stacklevel")):
                continue
            found[name] = value
        for name, value in kwargs.items():
            if name not in DEPRECATED:
                found.setdefault(name, value)
        return found


def table():
    """Returns {function: Function}."""
    found = {}
    for name in NAMES:
        func = getattr(F, name, None)
        if func is not None:
            found[func] = Function(name, func)
    for owner in (torch, torch.Tensor):
        for name in ("softmax", "log_softmax"):
            found[getattr(owner, name)] = Function(name, getattr(owner, name), builtin=True)
    return found
