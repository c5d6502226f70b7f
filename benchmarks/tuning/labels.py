"""Names of what is measured: folders, peers of the harness, keys of the results."""

import re


def after(minutes: float) -> str:
    """Name the model after so many minutes of tuning."""
    return f"tuned-{minutes:g}-min"


def minutes_of(label: str) -> float | None:
    """Tell the minutes that a label names, if it names any."""
    found = re.fullmatch(r"tuned-([\d.]+)-min", label)
    return float(found[1]) if found else None


def tuned(trials: int) -> str:
    """Name the model after so many trials."""
    return f"tuned-{trials}-trials"


def metaschedule(trials: int) -> str:
    """Name the model after so many trials of stock MetaSchedule."""
    return f"metaschedule-{trials}-trials"


def trials_of(label: str) -> int | None:
    """Tell the trials of MetaSchedule that a label names, if it names any."""
    found = re.fullmatch(r"metaschedule-(\d+)-trials", label)
    return int(found[1]) if found else None
