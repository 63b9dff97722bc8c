"""Look up the pinned packages in the database of known vulnerabilities (OSV).

Exits with 1 if a version in constraints.txt has a known vulnerability that is not in `ACCEPTED`. Where the database
cannot be reached nothing is checked, and the exit code is 0: a closed network is not a fault of the project.
"""

import json
import sys
from http.client import HTTPException
from urllib.request import Request, urlopen

from pin import pinned

DATABASE = "https://api.osv.dev/v1/querybatch"
SECONDS = 20
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not concern this project: identifier and reason."""


def vulnerabilities(pins: dict[str, str], database: str = DATABASE) -> dict[str, list[str]]:
    """Return the identifiers of the vulnerabilities of each `name==version` that has any.

    Raises:
        OSError: if the database cannot be reached or answers with an error.
        ValueError: if the answer is not what the database documents.
    """
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in pins.items()]
    request = Request(database, json.dumps({"queries": queries}).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=SECONDS) as answer:
        results = json.load(answer).get("results", [])
    if len(results) != len(pins):
        raise ValueError(f"asked for {len(pins)} packages, got {len(results)} answers")
    found = {}
    for (name, version), result in zip(pins.items(), results, strict=True):
        identifiers = [item["id"] for item in result.get("vulns", []) if item["id"] not in ACCEPTED]
        if identifiers:
            found[f"{name}=={version}"] = identifiers
    return found


def main() -> None:
    """Print what was found."""
    pins = pinned()
    try:
        found = vulnerabilities(pins)
    except (OSError, HTTPException, ValueError) as error:
        print(f"audit: not checked, the database cannot be read ({error})")
        return
    for requirement, identifiers in found.items():
        print(f"audit: {requirement}: {', '.join(identifiers)}")
    print(f"audit: {len(pins)} packages, {len(found)} with known vulnerabilities")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
