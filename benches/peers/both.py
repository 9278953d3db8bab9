"""How a script runs its part of a comparison at every peer that is here."""

import sys


def absent(peers, said_on=sys.stdout):
    """Runs what each named peer has to show; how many could not, for want of what they import, which is said."""
    missing = 0
    for peer, run in peers.items():
        try:
            run()
        except ImportError as why:
            print(f"SKIPPED: {peer}, {why}", file=said_on)
            missing += 1
        except SystemExit:
            # `holding` has said why.
            missing += 1
    return missing
