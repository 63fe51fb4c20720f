"""What the stages before pytest did (scripts/test.py), as pytest cases.

Without a record there is nothing to tell, so nothing is collected: `pytest tests` on its own runs the Python tests.
"""

import os

collect_ignore = [] if os.environ.get("SUITE_RECORD") else ["test_stages.py", "test_layers.py"]
