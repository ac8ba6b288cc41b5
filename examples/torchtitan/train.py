"""torchtitan's own `train.py`, guarded: two lines more.

torchrun --nproc-per-node=8 train.py --module llama3 --config llama3_8b
"""

from __future__ import annotations

from torchtitan.config import ConfigManager
from torchtitan.tools.logging import init_logger

from spikeguard.integrations.torchtitan import watch


def main() -> None:
    """Build the trainer that the command line names, watch it, train."""
    init_logger()
    trainer = ConfigManager().parse_args().build()
    # Before train(), which starts where the run stands.
    watch(trainer, run="example-torchtitan", every=500)
    try:
        trainer.train()
    finally:
        trainer.close()


if __name__ == "__main__":
    main()
