"""What `test_resumes.py` starts: all ranks of a job in one process, killed -9 in mid-epoch.

Words: data set, world size, steps to take, settings of the loader as JSON, state to go on from
(JSON, or `-`), the epoch to begin without one. Prints a line of JSON, then kills itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from itertools import islice

from eagle3data import StreamingLoader, open_dataset


def main() -> None:
    """Take the steps, with the rest of the epoch read ahead, and say what came."""
    url, ranks, steps, settings, state, epoch = sys.argv[1:]
    dataset = open_dataset(url)
    names, states = [], []
    for rank in range(int(ranks)):
        loader = StreamingLoader(
            dataset,
            rank=rank,
            world_size=int(ranks),
            layers=[2],
            threads=2,
            prefetch_bytes=1 << 30,
            **json.loads(settings),
        )
        if state == "-":
            loader.set_epoch(int(epoch))
        else:
            loader.load_state_dict(json.loads(state))
        stream = iter(loader)
        names.append([batch.sample_ids for batch in islice(stream, int(steps))])
        states.append((loader, stream))
    row = {"names": names, "states": [loader.state_dict() for loader, _ in states]}
    print(json.dumps(row), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
