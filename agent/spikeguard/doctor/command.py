"""`spikeguard doctor CHECKPOINT`: what files show; needs no server."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from spikeguard.doctor.checkpoint import findings_of, look, tensors_of
from spikeguard_cli.command import say
from spikeguard_cli.options import print_json
from spikeguard_protocol.findings import Level, by_weight


def doctor(options: Namespace) -> int:
    """Print what was found; 1 where something of it is a warning."""
    seen = look(tensors_of(Path(options.checkpoint)))
    found = by_weight(findings_of(seen))
    if options.json:
        print_json(
            [
                {"name": each.name, "evidence": each.evidence, "level": each.rule.level.value}
                | {"remedy": each.rule.remedy, "consequence": each.rule.consequence}
                | {"source": each.rule.source}
                for each in found
            ]
        )
    else:
        for each in found:
            say(f"{each.rule.level} {each.name}: {each.rule.title}. {each.sentences}")
        if not found:
            say(f"{options.checkpoint}, {seen.tensors} tensors: nothing found")
    return int(any(each.rule.level is Level.WARNING for each in found))
