"""Regions of torch.compile: a region that inductor compiled is recorded as one call, with its graph.

The graph is the one that AOTAutograd gives to inductor: calls of aten, which say what the region has to compute. Each object that inductor
returns (CompiledFxGraph) is known by its identity. While a compiled function runs or is compiled, nothing of ours that dynamo would see
(hooks, a function mode) is installed, so that it compiles what it would compile without us.
"""
import functools
import sys
import threading
import weakref

import torch

from .encode import Description
from .graphs import Graph, Unknown
from .places import behind, pass_on


SCHEMA = Description("torch.compile.inductor")
_here = threading.local()    # .inside: a region runs in this thread


def inside():
    return getattr(_here, "inside", 0) > 0


def compiling():
    """Whether dynamo or AOTAutograd traces or compiles now: calls on real tensors are then not the script's."""
    guards = sys.modules.get("torch._guards")
    context = getattr(guards, "CompileContext", None)
    if context is None or "torch._dynamo.convert_frame" not in sys.modules:
        return False
    try:
        return context.try_get() is not None or guards.TracingContext.try_get() is not None
    except AttributeError:
        return False


def _of_pytorch(function):
    """Returns what torch.compile is to compile: Module.compile gives a method that may be ours."""
    method = getattr(function, "__func__", None)
    return function if behind(method) is method else behind(method).__get__(function.__self__)


class Uncounted:
    """The owner of regions that are not recorded."""
    on, done = False, False

    def __init__(self, counter):
        self.counter, self.recorder = counter, self

    def note(self, text):
        pass


class Regions:
    """`owner` is a watch. `hide` is called when dynamo takes over, `show` when it gives back."""

    def __init__(self, owner, hide, show):
        self.owner, self.hide, self.show = owner, hide, show
        self.patched = []          # (object, name, original)
        self.known = {}            # id of what inductor returned: (weak reference, Graph)
        self.numbers = {}          # of graphs in the file: (id of a Graph, its sizes): number
        self.entered = False       # dynamo may take frames now
        self.wrote_parameters = False
        self.done = set()

    def install(self):
        if not hasattr(torch, "compile"):
            return
        original = torch.compile

        @functools.wraps(original)
        def compile(*args, **kwargs):
            __import__("torch._dynamo.eval_frame")    # as the original does
            self._find()
            return original(*map(_of_pytorch, args), **kwargs)

        self._patch(torch, "compile", compile)
        wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
        if wrapper is not None:
            call = wrapper.__call__

            def with_inductor(backend, *args, **kwargs):
                __import__("torch._inductor.compile_fx")
                self._find()
                return call(backend, *args, **kwargs)

            self._patch(wrapper, "__call__", with_inductor)
        self.any_hook = getattr(torch.nn.modules.module, "_has_any_global_hook", None)
        if self.any_hook is not None:
            self._patch(torch.nn.modules.module, "_has_any_global_hook", self._others_hooks)
        self._find()

    def remove(self):
        self._switch(False)
        for thing, name, original in reversed(self.patched):
            setattr(thing, name, original)
        self.patched, self.known = [], {}

    def _patch(self, thing, name, replacement):
        self.patched.append((thing, name, getattr(thing, name)))
        setattr(thing, name, replacement)

    def _others_hooks(self):
        """torch.compile warns of global hooks on modules: ours are no reason."""
        self.hide()
        try:
            return self.any_hook()
        finally:
            self.show()

    def _find(self):
        """Patches the modules that are loaded by now, each once."""
        for module, patch in (("torch._dynamo.eval_frame", self._patch_dynamo), ("torch._inductor.compile_fx", self._patch_inductor),
                              ("torch._dynamo.variables.misc", self._patch_functions)):
            found = sys.modules.get(module)
            if found is not None and module not in self.done:
                self.done.add(module)
                try:
                    patch(found)
                except Exception as e:    # a version that is built otherwise
                    pass_on(e)
                    self.owner.recorder.note(f"regions of torch.compile are not recorded: {type(e).__name__}: {e}")

    # Dynamo

    def _patch_dynamo(self, module):
        rules = sys.modules.get("torch._dynamo.trace_rules")
        if hasattr(rules, "add"):
            rules.add(__name__.partition(".")[0])    # dynamo does not compile our own functions
        for name in ("utils", "variables.nn_module"):    # it may have been imported while modules went through ours
            found = sys.modules.get("torch._dynamo." + name)
            if found is not None and hasattr(found, "unpatched_nn_module_call_impl"):
                found.unpatched_nn_module_call_impl = behind(found.unpatched_nn_module_call_impl)
        skip = getattr(torch._C._dynamo.eval_frame, "skip_code", None)
        # The functions that torch.compile returns; others, such as those of `disable`, also set what evaluates frames.
        compiled = {c for c in module._TorchDynamoContext.__call__.__code__.co_consts if hasattr(c, "co_consts")}
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            original = getattr(module, name, None)
            if original is None:
                continue

            # What a compiled function calls last: before, it puts back which dispatch keys are on.
            last = name.startswith("_maybe") or not hasattr(module, "_maybe_set_eval_frame")

            def switched(callback, original=original, last=last):
                ours = sys._getframe(1).f_code in compiled
                if callable(callback):
                    if ours:
                        self._switch(True)
                    return original(callback)
                prior = original(callback)
                if ours and last:
                    self._switch(False)
                return prior

            if skip is not None:
                skip(switched.__code__)
            self._patch(module, name, switched)

    def _patch_functions(self, module):
        """Dynamo has the passes of a Function as a part of its graph."""
        owner, tell = getattr(module, "AutogradFunctionVariable", None), getattr(self.owner, "dissolves", None)
        if tell is None or not hasattr(owner, "call_apply"):
            return
        original = owner.call_apply

        @functools.wraps(original)
        def call_apply(variable, *args, **kwargs):
            tell(variable.fn_cls)
            return original(variable, *args, **kwargs)

        self._patch(owner, "call_apply", call_apply)

    def _switch(self, on):
        if on == self.entered:
            return
        self.entered = on
        self._find()
        if on:
            self.hide()
            return
        self.show()
        if self.wrote_parameters:
            self.wrote_parameters = False
            self.owner.counter.compiled()

    # Inductor

    def _patch_inductor(self, module):
        self._without_cache()
        name = "_compile_fx_inner" if hasattr(module, "_compile_fx_inner") else "fx_codegen_and_compile"
        original = getattr(module, name)

        def compiled(gm, *args, **kwargs):
            try:
                graph = Graph(gm)
            except Unknown as e:
                graph = str(e)
            except Exception as e:
                graph = f"{type(e).__name__}: {e}"
            found = original(gm, *args, **kwargs)
            try:
                self.known[id(found)] = weakref.ref(found, lambda _, key=id(found): self.known.pop(key, None)), graph
            except TypeError:    # a function without calls
                pass
            return found

        self._patch(module, name, compiled)
        owner = getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)
        owner = owner or getattr(sys.modules.get("torch._inductor.codecache"), "CompiledFxGraph", None)
        if owner is None:
            owner = module.CompiledFxGraph
        call = owner.__call__

        def run(region, inputs):
            return self._run(call, region, inputs)

        self._patch(owner, "__call__", run)

    def _without_cache(self):
        """A region that AOTAutograd's cache gives has no graph. What is compiled is the same without this cache."""
        config = sys.modules.get("torch._functorch.config")
        if config is not None and hasattr(config, "enable_autograd_cache"):
            self._patch(config, "enable_autograd_cache", False)

    def _run(self, call, region, inputs):
        owner = self.owner
        if owner.done or inside():
            return call(region, inputs)
        _, graph = self.known.get(id(region), (None, "the region was compiled before recording began: its graph is not known"))
        values = list(inputs)
        known = isinstance(graph, Graph)
        written = [values[i] for i in graph.written] if known else values
        if known and self.entered and any(isinstance(t, torch.nn.Parameter) for t in written):
            self.wrote_parameters = True
        before = None
        if owner.on:
            number = None
            if known:
                try:
                    number = self._number(graph, values, owner.recorder)
                except Exception as e:
                    graph, known, written = str(e), False, values
            before = owner.region_begins(SCHEMA, (values + graph.constants if known else values,),
                                         {"graph": number} if known else {"unknown": graph})
        values = None    # the region may free its inputs while it runs
        if before is None:
            written = None
            return self._plain(call, region, inputs)
        out, raised = None, True
        try:
            out = self._plain(call, region, inputs)
            raised = False
        finally:
            owner.region_ends(before, written, out, raised, known)
        return out

    @staticmethod
    def _plain(call, region, inputs):
        _here.inside = getattr(_here, "inside", 0) + 1
        try:
            return call(region, inputs)
        finally:
            _here.inside -= 1

    def _number(self, graph, values, recorder):
        """Returns the number of the graph's record for these inputs; writes it if it is new."""
        sizes = graph.sizes(values)
        key = (id(graph), tuple(sorted((str(k), v) for k, v in sizes.items())))
        found = self.numbers.get(key)
        if found is None:
            found = self.numbers[key] = len(self.numbers) + 1, graph
            graph.write(found[0], sizes, recorder)
        return found[0]
