"""A file of results that grows with its run. It is whole JSON at any moment, and says whether the run came to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ResultFile:
    """Written when the run begins, so that no file of a run before is taken for it. Without a path nothing is written."""

    def __init__(self, path: Path | None, result: dict[str, Any]) -> None:
        self.path, self.result = path, result
        self.write()

    def write(self, complete: bool = False) -> None:
        self.result["complete"] = complete
        if self.path is None:
            return
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(json.dumps(self.result, indent=1) + "\n")
        new.replace(self.path)
