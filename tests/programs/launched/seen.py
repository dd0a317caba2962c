"""What a rank finds when its launcher has started it, one file per rank."""

import json
import os
import sys

with open(f"{os.environ['SEEN']}/{os.environ.get('RANK', 'none')}.json", "w") as file:
    json.dump({"argv": sys.argv, "environ": dict(os.environ), "name": __name__}, file)
