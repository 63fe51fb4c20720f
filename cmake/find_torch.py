"""Prints "ROOT;VERSION" of the torch package that this interpreter would import, or "none;none". Does not import it."""

from importlib import metadata, util

spec = util.find_spec("torch")
if spec is None or not spec.submodule_search_locations:
    print("none;none")
else:
    print(f"{spec.submodule_search_locations[0]};{metadata.version('torch')}")
