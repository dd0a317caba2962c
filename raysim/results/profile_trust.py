"""The ``trust`` part of a summary when a profile stands in for raysim's own constants."""

from __future__ import annotations

from collections import Counter
from typing import Any

from raysim.perf.profile import DATASHEET, Profile, SectionName


def under_profile(
    trust: dict[str, Any], profile: Profile | None, section: SectionName
) -> dict[str, Any]:
    """``trust`` with the profile's constants, their values and where they are from.

    Numbers of datasheets are not touched: their rows say already who replaced them.
    """
    if profile is None:
        return trust
    constants = {name: c for name, c in getattr(profile, section).items() if name not in DATASHEET}
    inputs = {item["name"]: item for item in trust["inputs"]}
    for name, constant in constants.items():
        origin = profile.provenance(constant)
        said = f"Ray {name}" if section == "ray" else name
        inputs[said] = {
            "name": said, "value": constant.value, "basis": origin.basis, "source": origin.source,
        }  # fmt: skip
    counts = Counter(item["basis"] for item in inputs.values())
    return {
        **trust,
        **{basis: counts[basis] for basis in ("measured", "datasheet", "assumed")},
        "inputs": list(inputs.values()),
        "past_error": None if constants else trust["past_error"],
        "profile": {
            "name": profile.name, "made": profile.made, "source": profile.source,
            "constants": len(getattr(profile, section)),
        },
    }  # fmt: skip
