"""Prints the events of ExecuTorch's `Inspector` as JSON: executorch_events.py ETDUMP ETRECORD."""

import json
import sys

from executorch.devtools import Inspector

FIELDS = ("name", "is_delegated_op", "delegate_backend_name", "op_types")

inspector = Inspector(etdump_path=sys.argv[1], etrecord=sys.argv[2])
blocks = [
    {"name": block.name, "events": [{field: getattr(event, field) for field in FIELDS} for event in block.events]}
    for block in inspector.event_blocks
]
print(json.dumps(blocks, indent=1))
