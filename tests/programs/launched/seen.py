"""What a rank finds when its launcher has started it, one file per rank."""

import json
import os
import sys
from pathlib import Path

seen = {"argv": sys.argv, "environ": dict(os.environ), "name": __name__, "file": __file__}
Path(os.environ["SEEN"], f"{os.environ.get('RANK', 'none')}.json").write_text(json.dumps(seen))
