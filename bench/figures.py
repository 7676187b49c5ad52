"""Rows of the bench as numbers: medians, spreads, ratios to each peer, slopes. Nothing here measures or prints.

    row = summary({"row": "dot f32 512x512x512", "threads": 2, "unit": "GFLOP/s", "smaller": False, "target": 1.0,
                   "ours": [210, 215, 190], "peers": {"OpenBLAS": [200, 205, 199]}})
    row["ratio"]        # [median, lower quartile, upper quartile] against the best peer
"""

import math
import statistics

# Two-sided 95 % quantiles of Student's distribution for 1 to 8 degrees of freedom (any table of it, such as NIST's e-Handbook 1.3.6.7.2).
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)


def spread(samples):
    """Returns [median, lower quartile, upper quartile]."""
    if len(samples) < 2:
        return [samples[0]] * 3
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return [middle, low, high]


def ratios(ours, peer, smaller):
    """Ratios of neighbouring samples: above 1, ours is better. A peer with one figure is a limit, or was counted."""
    if len(peer) == 1:
        peer = peer * len(ours)
    return [p / o if smaller else o / p for o, p in zip(ours, peer)]


def summary(line):
    """The row of a line of samples. The best peer is the one that ours has the smallest ratio to."""
    against = {name: spread(ratios(line["ours"], peer, line["smaller"])) for name, peer in line["peers"].items()}
    best = min(against, key=lambda name: against[name][0])
    row = {
        "name": line["row"],
        "threads": line["threads"],
        "unit": line["unit"],
        "ours": spread(line["ours"]),
        "peers": {name: spread(peer) for name, peer in line["peers"].items()},
        "ratios": against,
        "best": best,
        "ratio": against[best],
        "target": line["target"],
    }
    row["met"] = None if row["target"] is None else row["ratio"][0] >= row["target"]
    return row


def slope(points):
    """Least squares of log(cost) over log(work): the slope and the half-width of its 95 % interval."""
    x, y = ([math.log(p[i]) for p in points] for i in (0, 1))
    freedom = len(points) - 2
    if freedom < 1:
        raise ValueError(f"a slope with an error needs three points, here {len(points)}")
    fit = statistics.linear_regression(x, y)
    rest = sum((b - fit.intercept - fit.slope * a) ** 2 for a, b in zip(x, y))
    middle = statistics.fmean(x)
    error = math.sqrt(rest / freedom / sum((a - middle) ** 2 for a in x))
    return fit.slope, error * STUDENT[min(freedom, len(STUDENT)) - 1]


def growth(line):
    """The row of a line of points (work, seconds). Nothing may grow faster than its work: the slope is at most 1 and its error."""
    fitted, error = slope(line["points"])
    samples = {"row": line["growth"], "threads": line["threads"], "unit": "slope", "smaller": True, "target": 1.0,
               "ours": [fitted], "peers": {"at most": [1 + error]}}
    row = summary(samples)
    row["ours"] = [fitted, fitted - error, fitted + error]
    return row


def share(rows, peer, ceiling="ceiling fma", product="dot f32 1024x1024x1024"):
    """What a peer reaches of the machine's fused multiply-adds on one thread: its product over the ceiling; None: not measured."""
    peaks = [r["peers"]["machine"][0] for r in rows if r["name"].startswith(ceiling) and r["threads"] == 1]
    figures = [r["peers"][peer][0] for r in rows if r["name"] == product and r["threads"] == 1 and peer in r["peers"]]
    return figures[0] / max(peaks) if peaks and figures else None
