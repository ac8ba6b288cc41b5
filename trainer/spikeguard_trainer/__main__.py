"""`python -m spikeguard_trainer`: read the options, train, say how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from spikeguard import SpikeguardError
from spikeguard_trainer.data import DataError
from spikeguard_trainer.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_STOPPED, parse_options
from spikeguard_trainer.ranks import joined_ranks
from spikeguard_trainer.train import train


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one attempt; returns the exit status that `--help` explains."""
    options = parse_options(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        with joined_ranks(allow_cuda=not options.cpu) as ranks:
            summary = train(options, ranks)
            leads = ranks.leads
            if leads and options.summary:
                summary.write(options.summary)
            ranks.meet()  # `torchrun` ends the others once one has ended with a status
    except (DataError, SpikeguardError) as error:
        print(f"spikeguard_trainer: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    if leads and not options.quiet:
        ending = "finished" if summary.finished else "stopped by a command"
        print(
            f"{ending} at step {summary.steps}, validation loss {summary.validation_loss:.4f}",
            file=sys.stderr,
        )
    return 0 if summary.finished else EXIT_STOPPED


if __name__ == "__main__":
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    sys.exit(main())
