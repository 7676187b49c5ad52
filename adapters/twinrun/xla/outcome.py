"""The verdict of a JAX step, and the sentences of its report, from what was seen."""

import os
import re
import sys

from .derivative import excused
from .singles import TIME_OVER


def outcome(seen):
    """Returns the data of report.json: verdict, findings, lines, and what was judged."""
    whole, singles, culprit, decided = seen["whole"], seen.get("singles"), seen.get("culprit"), seen.get("decided")
    findings, lines = [], []
    several = seen["devices"] > 1
    if culprit and culprit.proven:
        verdict, headline = "ENGINE_BUG", _accusation(seen, culprit)
        findings.append({"cause": "fusion" if len(culprit.equations) > 1 else "op", "sentence": culprit.answer.sentence()})
        if culprit.partitioner and not _later_pass(culprit):
            findings[-1]["cause"] = "partitioner"
        findings += _cause(culprit)
    elif whole.outside:
        verdict = "ENGINE_BUG"
        headline = "the step's results are outside the bounds of binary64; the ops that do it were not found"
        findings.append({"cause": "step", "sentence": whole.sentence()})
    elif seen["triggered"] is not None and culprit and seen["platform"] != "cpu" and _tight(culprit.answer):
        verdict = "NOISE"
        headline = "what XLA compiles gives what its equations give one by one, but for the rounding of products' operands"
        seen["notes"].append(
            "this device rounds the operands of products (TF32, bfloat16), which hides what is smaller; "
            "jax.config.update('jax_default_matmul_precision', 'highest') before the diagnosis makes the bounds tight"
        )
    elif seen["triggered"] is not None:
        verdict = "INCONCLUSIVE"
        headline = "the compiled step and its equations one by one differ by more than rounding explains, but nothing is proven"
    elif whole.unlikely:
        verdict = "INCONCLUSIVE"
        headline = (
            f"{whole.unlikely:,} elements of the step's results are farther off than rounding is likely to explain, but "
            "nothing is proven"
        )
    elif _makes_nan(seen):
        verdict = "PROGRAM"
        headline = f"the step's own equations make its new state NaN, first {_maker(seen['not_finite'])}; XLA computes what they say"
        findings.append({"cause": "nan", "sentence": headline})
    elif _wrong_rule(seen):
        verdict, headline = "PROGRAM", _gradient(seen["gradient"])
        findings.append({"cause": "gradient", "sentence": headline, "op": seen["gradient"].wrong["rule"],
                         "place": seen["gradient"].wrong["place"]})  # fmt: skip
    elif seen["update"].wrong:
        verdict, headline = "PROGRAM", _update(seen["update"].wrong)
        findings.append({"cause": "update", "sentence": headline, "op": f"optax.{seen['update'].wrong['name']}"})
    elif decided.open:
        verdict, headline = "INCONCLUSIVE", _open(decided, singles, seen.get("no_digit"))
    elif seen["gradient"].wrong and not seen["gradient"].wrong["rule"]:
        verdict, headline = "INCONCLUSIVE", _gradient(seen["gradient"])
    else:
        verdict = "NOISE"
        headline = "what XLA compiles gives what its equations give one by one, but for rounding"
        if not whole.refused and {leaf.by for leaf in decided.leaves} <= {"bounds"}:
            headline += f"; no element of {whole.elements:,} is outside the bounds of binary64"
    if seen["triggered"] is not None:
        lines.append(f"step {seen['triggered']}, beyond rounding: " + "; ".join(seen["beyond"]))
    if culprit and not culprit.proven:
        lines.append("compiled together, these equations give something else than one by one: " + "; ".join(culprit.group))
        if culprit.answer and culprit.answer.refused:
            lines.append(f"they were not judged: {culprit.answer.refused}")
        elif culprit.answer:
            lines.append("judged as they are compiled together, no element is outside its bound")
    if seen.get("lost"):
        lines.append(f"no group was found: {seen['lost']}")
    lines.append(_judged(whole, singles))
    wrong = seen["gradient"].wrong
    remarks = [_gradient(seen["gradient"])] if wrong and wrong["meant"] and not wrong.get("allowed") else []
    if decided:
        lines += _decided(decided, singles)
    if seen.get("not_finite") and verdict != "PROGRAM":
        lines.append(f"a result is not finite: the first value that is not was made {_maker(seen['not_finite'])}")
    if seen["gradient"].wrong and not _wrong_rule(seen):
        lines.append(_gradient(seen["gradient"]))
    if verdict == "NOISE":
        lines.append(
            f"{_asked(seen)}; the step's own equations are the definition here; whether another release of JAX computes the same: "
            "twinrun diagnose FOLDER_OF_THE_OTHER --against THIS_FOLDER"
        )
    lines += [n for n in (culprit.notes if culprit else [])]
    lines += seen["notes"]
    where = f"{seen['devices']} devices" if several else "1 device"
    lines.append(
        f"{seen['what']}, {seen['steps']} step{'s' * (seen['steps'] != 1)}, {seen['equations']} equations, "
        f"{seen['versions']} on {where} ({seen['platform']})"
        + (f", XLA_FLAGS={seen['flags']}" if seen["flags"] else "")
        + f"; {seen['seconds']} s"
    )
    return {
        "schema": 3,
        "kind": "JAX step",
        "verdict": {"class": verdict, "effect": "undecided", "headline": headline, "subject": seen["versions"]},
        "answers": _answers(seen, verdict, headline, several),
        "open": [],
        "scenario": {"name": _script() or seen["what"]},
        "findings": [dict(f, **{"class": verdict, "level": " "}) for f in findings],
        "remarks": remarks,
        "notes": [line for line in lines if line not in remarks],
        "lines": lines,
        "triggered": seen["triggered"],
        # What `twinrun bundle` judges again: files beside report.json.
        "environment": culprit.answer.files if culprit and culprit.proven else whole.files if whole.outside else {},
        "group": culprit.group if culprit else [],
        "passes": culprit.passes if culprit else None,
        "repro": str(culprit.repro) if culprit and culprit.repro else None,
        "whole": whole.data,
        "step": seen["step"],
        "gradient": seen["gradient"].worst if seen["gradient"].asked else None,
        "undecided": decided and {leaf.name: round(leaf.undecided, 6) for leaf in decided.leaves},
        "singles": {"judged": singles.judged, "of": singles.total, "refused": singles.refused} if singles else None,
        "versions": seen["versions"], "devices": seen["devices"], "platform": seen["platform"],
        "seconds": seen["seconds"],
    }  # fmt: skip


def _script():
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return "" if name in ("", "-c", "-m") else name


def _answers(seen, verdict, headline, several):
    """Returns what came out of each question, as report.json has it."""
    asked = seen["gradient"].asked or seen["update"].asked
    operations = {"ENGINE_BUG": "no", "INCONCLUSIVE": "open"}.get(verdict, "yes")
    answers = {
        "repeats": ("yes" if seen["repeats"] else "no", "the step ran twice on the same numbers"),
        "operations": (operations, headline),
        "program": ("no", headline) if verdict == "PROGRAM"
        else ("in part", _asked(seen)) if asked else ("not asked", _asked(seen).partition("not asked: ")[2]),
        "sharding": ("not asked", "no step on one device was given") if several else ("-", "one device"),
        "effect": ("not asked", "a few steps do not say what the model learns"),
    }  # fmt: skip
    return {question: {"outcome": outcome, "what": what} for question, (outcome, what) in answers.items()}


def _wrong_rule(seen):
    """Whether a rule is known that is no derivative, and not meant to be another gradient."""
    wrong = seen["gradient"].wrong
    return bool(wrong and wrong["rule"] and not excused(wrong))


def _gradient(found):
    wrong = found.wrong
    text = "the gradient is not the derivative of the loss"
    if not wrong["rule"]:
        return f"{text}, by {wrong['off']:.2g} of it, and the rule that makes it was not found"
    if wrong["rule"] == "here":
        return (
            f"{text} at the parameters' present values, by {wrong['off']:.2g} of it; a little beside them it is: a branch for "
            "single values, as where(x == 0, x, f(x)), or a rule of JAX's own for them"
        )
    if wrong.get("allowed"):
        return f"{text}, as allow= says of {wrong['rule']} ({wrong['place']})"
    if wrong["meant"]:
        return (
            f"{text}, which seems to be meant: {wrong['rule']} {wrong['meant']}, and changes the gradient ({wrong['place']}). If it is, "
            f"allow it by name: allow=['{wrong['rule']}'], or --allow {wrong['rule']}"
        )
    return f"{text}: the rule of {wrong['rule']}, at {wrong['place']}, is no derivative of it; they differ by {wrong['off']:.2g}"


def _asked(seen):
    """Says what of the program was asked, and what was not."""
    gradient, update, asked, rest = seen["gradient"], seen["update"], [], []
    if gradient.asked and not gradient.wrong:
        asked.append(f"the gradient is the derivative of the loss (they differ by {gradient.worst:.1e} of it)")
    else:
        rest.append("whether the gradient is the derivative of the loss" + (f" ({gradient.why})" if gradient.why else ""))
    if update.asked:
        names = ", ".join(update.asked)
        asked.append(f"optax's {names} {'is its' if len(update.asked) == 1 else 'are their'} published formula ({update.worst:.1e})")
    if update.unknown or not update.asked:
        what = f"whether optax's {', '.join(update.unknown)} is its formula" if update.unknown else "whether the optimizer is its formula"
        rest.append(what)
    return "; ".join([*asked, *(["not asked: " + ", and ".join(rest)] if rest else [])])


def _update(wrong):
    looks = f"; it is the formula {wrong['looks']}" if wrong["looks"] else ""
    return (
        f"optax's {wrong['name']} is not its published formula: in step {wrong['step']} its {wrong['what']} differs by {wrong['off']:.3g} of "
        f"the largest element{looks}"
    )


def _makes_nan(seen):
    found = seen.get("not_finite")
    return bool(found and found[1] == "NaN" and seen["nan_state"] and id(found[0]) in seen["singles"].right)


def _maker(found):
    equation, word, constant = found
    return f"by {equation} ({word}" + (", from a constant that is so)" if constant else ")")


def _open(decided, singles, no_digit):
    """The headline where less of the update is decided than is not: what was not asked, and how to ask it."""
    names = ", ".join(leaf.name for leaf in decided.open[:4]) + (", ..." if len(decided.open) > 4 else "")
    unjudged = dict.fromkeys(e for leaf in decided.open for e in leaf.unjudged)
    if unjudged:
        equation = next(iter(unjudged))
        why = (
            "nothing was judged one by one" if not singles
            else singles.refused.get(equation.name) or singles.refused.get("all") or "most of its elements have no finite bound"
        )  # fmt: skip
        return f"what {names} depends on was not judged: {equation} ({_short(why)})" + (
            "; seconds= gives more time" if why == TIME_OVER else ""
        )
    text = f"rounding alone may make {decided.undecided:.0%} of the norm of the update, so it was not looked at: {names}"
    if decided.undecided**2 < 0.5:
        text = f"rounding alone may make all of {names}, so it was not looked at"
    if no_digit:
        equation, times = no_digit
        text += f". {equation} has no correct digit: rounding moves it by {times:.3g} times its size; only another formula for it helps"
    return text


def _decided(decided, singles):
    """Says by which check the update is decided, and which leaves are not."""
    lines, by = [], dict.fromkeys(leaf.by for leaf in decided.leaves if leaf.by)
    if by:
        lines.append(
            f"{1 - decided.undecided**2:.1%} of the squared norm of the update is decided, by {', '.join(by)}"
        )
    few = [leaf for leaf in decided.leaves if leaf.open]
    if few and not decided.open:
        named = ", ".join(leaf.name for leaf in few[:6]) + (f" and {len(few) - 6} more" if len(few) > 6 else "")
        why = "rounding alone may make all of their change" if not any(leaf.unjudged for leaf in few) else "not all was judged"
        lines.append(f"not decided: {named} ({why})")
    return lines


def _tight(answer):
    """Whether a group was judged, is right, and its bounds are small beside its numbers: at most a sixteenth in the median."""
    if not answer or answer.refused or answer.outside or answer.unlikely:
        return False
    return all((r.get("median_relative_radius") or 0.0) <= 1 / 16 for r in answer.results)


def _accusation(seen, culprit):
    ops = " + ".join(e.name for e in culprit.equations[:8]) + (" + ..." if len(culprit.equations) > 8 else "")
    places = ", ".join(dict.fromkeys(e.place for e in culprit.equations if e.place))
    where = f" at {places}" if places else ""
    if culprit.partitioner and _later_pass(culprit):
        return f"XLA computes {ops}{where} wrongly on several devices: on one device the same operation is right"
    if culprit.partitioner:
        return f"the partitioner's collective for {ops}{where} is wrong: on one device the same operation is right"
    if len(culprit.equations) == 1:
        return f"XLA computes {ops}{where} wrongly"
    return f"XLA computes {ops}{where} wrongly when it joins them"


def _later_pass(culprit):
    """Returns whether it is right without a pass that is not the partitioner: then that pass spoils what the partitioner made."""
    without = culprit.passes["without"] if culprit.passes else []
    return bool(without) and not any(re.search("partition|spmd|shardy|sdy", name) for name in without)


def _cause(culprit):
    found = []
    for e in culprit.equations:
        found.append({"cause": "", "sentence": f"in the group: {e}"})
    if culprit.passes and culprit.passes["without"]:
        names = culprit.passes["without"]
        found.append({
            "cause": "pass",
            "sentence": f"right without the pass {names[0]}"
            + (f", and without {', '.join(names[1:])}, which come before it" if names[1:] else "")
            + f" ({culprit.passes['tried']} of {len(culprit.passes['ran'])} passes that changed it were left out)",
            "cure": f"XLA_FLAGS=--xla_disable_hlo_passes={names[0]} until it is fixed",
        })  # fmt: skip
    elif culprit.passes:
        found.append({"cause": "", "sentence": f"leaving out each of {culprit.passes['tried']} passes alone does not make it right"})
    if culprit.repro and culprit.passes:  # the search for the pass has run it, and seen it wrong
        found.append({"cause": "", "sentence": f"{culprit.repro} shows it in plain JAX"})
    return found


def _judged(whole, singles):
    """Says what was judged in binary64, and what was not and why."""
    if whole.refused:
        text = f"the whole step was not judged: {_short(whole.refused)}"
    else:
        wide = [r["median_relative_radius"] for r in whole.results if r.get("median_relative_radius") is not None]
        text = f"the whole step was judged: {whole.elements:,} elements"
        if wide and max(wide) < 1:
            text += f"; half of each result's bounds are within {max(wide):.2g} of its numbers"
        elif wide:
            text += "; bounds of some results are wider than their numbers, and say nothing of them"
    if singles is not None:
        text += f"; {singles.judged} of {singles.total} equations were judged one by one"
        if singles.refused:
            text += ", not: " + "; ".join(f"{k} ({_short(v)})" for k, v in list(singles.refused.items())[:6])
            if len(singles.refused) > 6:
                text += f"; and {len(singles.refused) - 6} more"
    return text


def _short(text):
    lines = [x.strip() for x in str(text).splitlines() if x.strip()]
    # "N instructions cannot be imported" comes first, then which, with FILE:LINE.
    line = ": ".join(lines[1:2]) or "".join(lines[:1]) if "cannot be imported" in "".join(lines[:1]) else "".join(lines[:1])
    line = re.sub(r"^\S*/([^/\s]+:\d+:)", r"\1", line)
    return line if len(line) <= 160 else line[:157] + "..."
