"""A user's JAX training step: what XLA makes of it on the user's own devices. docs/guides/jax.md is the guide.

    diagnose(step, state, batches)                # diagnose.py, the stages in their order

arguments.py finds the state among a step's arguments and results; equations.py holds the step as one list of equations;
stepwise.py computes them one by one; noise.py says whether the compiled step differs by more than rounding; search.py
and culprit.py find the equations that may not be compiled together; judge.py and singles.py ask the program twinrun for
the proof; passes.py and repro.py prepare the bug filing; outcome.py makes the verdict; files.py writes steps as text.
"""
