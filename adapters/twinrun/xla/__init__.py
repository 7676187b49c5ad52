"""A user's JAX training step: what XLA makes of it on the user's own devices. docs/guides/jax.md is the guide.

    diagnose(step, state, batches)                # diagnose.py, the stages in their order

arguments.py finds the state among a step's arguments and results; equations.py holds the step as one list of equations
and evaluates it with barriers; noise.py says whether two runs differ by more than rounding; search.py finds the
equations that may not be joined; judge.py asks the program twinrun for the proof; passes.py and repro.py prepare the
bug filing; files.py writes steps as text.
"""
